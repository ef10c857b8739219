"""Running a training step as a pipeline: `pipeline` and `stage`."""

from __future__ import annotations

from shardy_py.stages.run.errors import PipelineError as PipelineError
from shardy_py.stages.run.markers import stage as stage
from shardy_py.stages.run.pipelining import Pipelined as Pipelined
from shardy_py.stages.run.pipelining import pipeline as pipeline
