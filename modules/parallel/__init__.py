"""Layer parallelism: one model, cut by whole layers over several devices."""

from .cache import Cache as Cache
from .errors import PlacementError as PlacementError
from .layers import AutoregressiveLayer as AutoregressiveLayer
from .layers import DistributedLayer as DistributedLayer
from .layers import LayerParallelism as LayerParallelism
from .layers import LayerSequence as LayerSequence
from .memory import DeviceMemory as DeviceMemory
from .memory import LayerMemory as LayerMemory
from .memory import OutputMemory as OutputMemory
from .model import DistributedLayeredModel as DistributedLayeredModel
from .placement import LayerPlacement as LayerPlacement
from .placement import LayerStage as LayerStage
from .stages import HeldStage as HeldStage
from .stages import StagedLayers as StagedLayers
