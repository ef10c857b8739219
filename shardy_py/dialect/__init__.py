"""The SDY dialect as values: meshes, axes, shardings, sharding rules, their text and their checks; knows nothing of JAX."""

from shardy_py.dialect.axis import AxisRef as AxisRef
from shardy_py.dialect.collectives import AllToAllParam as AllToAllParam
from shardy_py.dialect.collectives import AllToAllParamList as AllToAllParamList
from shardy_py.dialect.collectives import AxisRefList as AxisRefList
from shardy_py.dialect.collectives import ListOfAxisRefLists as ListOfAxisRefLists
from shardy_py.dialect.collectives import ManualAxes as ManualAxes
from shardy_py.dialect.format import format_type as format_type
from shardy_py.dialect.mesh import Mesh as Mesh
from shardy_py.dialect.mesh import MeshAxis as MeshAxis
from shardy_py.dialect.rule import DimMapping as DimMapping
from shardy_py.dialect.rule import FactorType as FactorType
from shardy_py.dialect.rule import OpShardingRule as OpShardingRule
from shardy_py.dialect.rule import PropagationDirection as PropagationDirection
from shardy_py.dialect.rule import TensorMapping as TensorMapping
from shardy_py.dialect.semantics import CHANGES as CHANGES
from shardy_py.dialect.semantics import INSTALLED as INSTALLED
from shardy_py.dialect.semantics import Semantics as Semantics
from shardy_py.dialect.sharding import DimensionSharding as DimensionSharding
from shardy_py.dialect.sharding import TensorSharding as TensorSharding
from shardy_py.dialect.sharding import TensorShardingPerValue as TensorShardingPerValue
from shardy_py.dialect.text import parse_attribute as parse_attribute
