"""The program that front ends build, passes rewrite and back ends read; knows nothing of JAX."""

from shardy_py.ir.core import Block as Block
from shardy_py.ir.core import Function as Function
from shardy_py.ir.core import Location as Location
from shardy_py.ir.core import Op as Op
from shardy_py.ir.core import Program as Program
from shardy_py.ir.core import Value as Value
from shardy_py.ir.printer import print_program as print_program
from shardy_py.ir.types import TOKEN as TOKEN
from shardy_py.ir.types import OpaqueType as OpaqueType
from shardy_py.ir.types import TensorType as TensorType
from shardy_py.ir.types import Type as Type
from shardy_py.ir.types import element_bits as element_bits
