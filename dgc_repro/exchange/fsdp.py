"""FSDP2: the junction where an exchange takes the gradients of a model that `fully_shard` has sharded.

The ranks are a mesh of two dimensions. FSDP shards the model on the inner one, inside a node: in backward it
reduce-scatters the gradients of one unit (a module given to `fully_shard`) after another, and each rank holds
its shard of their mean over the node. The unit's all-reduce hook then gets the shard, and the exchange
averages it with the same shard of the other nodes, on the outer dimension. When the hook returns, FSDP goes
on with the mean: it casts it to the parameter's type and adds it to ``param.grad``.

`fully_shard` gets the inner dimension alone, or the whole mesh (HSDP). With the whole mesh FSDP would average
over the nodes itself, before the hook; `Unit.take_over` turns that off.

A shard is flat. It holds this rank's part of each parameter of the unit, filled up with zeros where the
parameter cannot be cut into equal parts. The exchange gets a batch: a tensor for each part, in its own shape
and without the zeros. A rank that has no part of a parameter leaves it out; so do the same ranks of the
other nodes.

What is private to torch stays inside `Unit`. `Unit.parts` reads the flat layout, and checks its size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dgc_repro.errors import UserError
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.finite import first_non_finite
from dgc_repro.exchange.hook import refuse_capture
from dgc_repro.exchange.junction import Junction
from dgc_repro.exchange.process_group import group_of_some, splits
from dgc_repro.exchange.world import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Unit:
    """The parameters whose gradients FSDP reduces together. ``name``: of the module."""

    def __init__(self, name: str, module: Any, group: Any, names: Mapping[int, str]) -> None:
        self.name = name
        self._module = module
        self._group = group  # torch's FSDPParamGroup
        self._names = names  # by id of the sharded parameter
        self._learned = frozenset(self.parameters)  # when the compressor was attached

    @property
    def mesh(self) -> DeviceMesh:
        """Of two dimensions with HSDP, else of one. Raises UserError."""
        info = getattr(self._group, "mesh_info", None)
        dims = tuple(getattr(info, f"{kind}_mesh_dim", "?") for kind in ("replicate", "shard"))
        if dims == (0, None):
            raise UserError(
                "model: replicate() averages over all ranks itself; use DistributedDataParallel in its place"
            )
        if info is None or dims != {1: (None, 0), 2: (0, 1)}.get(info.mesh.ndim):
            raise UserError(
                f"model: torch {torch.__version__} keeps the mesh of fully_shard in an unknown form "
                f"(dimensions {dims}); use a version that docs/fsdp.md names"
            )
        mesh: DeviceMesh = info.mesh
        return mesh

    @property
    def device(self) -> torch.device:
        device: torch.device = self._group.device
        return device

    @property
    def hook(self) -> Any:
        """What FSDP calls after its reduce-scatter, if anything."""
        return self._group._all_reduce_hook

    def take_over(self, hook: Callable[[Tensor], None]) -> None:
        """Have FSDP call a hook with each shard that it has reduce-scattered. With HSDP the hook takes the
        place of FSDP's all-reduce over the nodes: FSDP all-reduces where its group's mesh is an HSDPMeshInfo,
        which is an FSDPMeshInfo and a DDPMeshInfo."""
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo

        group, info = self._group, self._group.mesh_info
        if isinstance(info, HSDPMeshInfo):
            group.mesh_info = copy.copy(info)
            group.mesh_info.__class__ = FSDPMeshInfo
            if group.post_forward_mesh_info == info:  # FSDP compares the two
                group.post_forward_mesh_info = group.mesh_info
        self._module.set_all_reduce_hook(hook)

    @property
    def sums(self) -> bool:
        """Whether FSDP would sum over the nodes: HSDP has divided by the user's factor inside the node."""
        return self._group.gradient_divide_factor is not None and self.mesh.ndim > 1

    @property
    def waits(self) -> bool:
        """Whether shards stay inside the node until a later backward: ``set_requires_all_reduce(False)``."""
        return not self._group.all_reduce_grads

    @property
    def parameters(self) -> dict[str, Any]:
        """Those that learn, in the order in which they lie in the shard: torch's FSDPParam by name."""
        params = self._group.fsdp_params
        order = getattr(self._group, "_reduce_scatter_param_indices", ()) or range(len(params))
        learn = [params[i] for i in order if params[i].sharded_param.requires_grad]
        return {self._names[id(param.sharded_param)]: param for param in learn}

    def refuse_thawed(self) -> None:
        """Raise UserError where a parameter learns that was frozen when the compressor was attached: a rank
        that alone has unfrozen it hands FSDP a larger unit than the others, with which they cannot go on."""
        learn = (p.sharded_param for p in self._group.fsdp_params if p.sharded_param.requires_grad)
        if thawed := {self._names[id(parameter)] for parameter in learn} - self._learned:
            raise UserError(
                f"model: {min(thawed)} was frozen when the compressor was attached and learns now; detach, "
                "and attach again"
            )

    def parts(self, shard: Tensor) -> dict[str, Tensor]:
        """Views of this rank's parts of the parameters, without the filling. Raises UserError."""
        parameters = self.parameters
        sizes = [param.padded_sharded_param_size.numel() for param in parameters.values()]
        self.refuse_thawed()
        if sum(sizes) != shard.numel():
            raise UserError(
                f"model: some parameters of the unit {self.name!r} have no gradient in this step; freeze "
                "them, or with a newer torch call model.set_reduce_scatter_unused_params(True)"
            )
        pieces = zip(parameters.items(), shard.split(sizes), strict=True)
        return {
            name: piece[: param.sharded_size.numel()].view(param.sharded_size)
            for (name, param), piece in pieces
            if param.sharded_size.numel()
        }


class PerUnit(Junction):
    """The exchange of each unit's shard while backward goes on; plans must be known before the step."""

    overlaps = True

    def __init__(
        self,
        exchange: Exchange,
        parameters: Mapping[str, nn.Parameter],
        everybody: World,
        units: list[Unit],
        kept: Mapping[int, Tensor],
    ) -> None:
        """``kept``: the shards of units that wait for a later backward."""
        super().__init__(exchange, parameters, everybody)
        self._units, self._kept = units, kept
        self._error: Exception | None = None

    @torch.no_grad()
    def hand_over(self, index: int, shard: Tensor) -> None:
        """FSDP has reduce-scattered the gradient of a unit: average it over the nodes, in place. What goes
        wrong is raised when backward is over."""
        exchange = self.exchange
        if not self.pending:
            self.pending, self.bad, self._seen = True, [None], []
            exchange.hold()
        try:
            if self._error is None:
                self._average(self._units[index].parts(shard), shard, index)
        except Exception as error:
            self._error = error

    def _average(self, gradients: dict[str, Tensor], shard: Tensor, index: int) -> None:
        if shard.is_cuda:  # not every torch keeps the shard until this stream has read it
            shard.record_stream(torch.cuda.current_stream(shard.device))
        if not gradients:
            return
        if bad := first_non_finite(gradients, self.exchange.converted):
            self.bad[0] = self.bad[0] or bad
            shard.zero_()  # the other nodes wait; the step will be undone
        self.run([gradients], part=index + 1).finish()
        self.exchange.put(owe=True)

    def refuse_thawed(self) -> None:
        """See `Unit.refuse_thawed`. Nothing has been sent when a forward begins."""
        for unit in self._units:
            unit.refuse_thawed()

    def open(self, names: Collection[str] | None = None) -> str | None:
        self.pending = False
        if self._error is not None:
            error, self._error = self._error, None
            self.exchange.undo()
            raise error
        if self._kept:
            name = self._units[min(self._kept)].name
            raise UserError(
                f"model: the last backward of this step left out the unit {name!r}, which has gradients of "
                "an earlier one under set_requires_all_reduce(False); use set_requires_gradient_sync(False)"
            )
        return self.bad[0]

    def settle(
        self, numbers: Sequence[float | Tensor], *, finite: bool
    ) -> tuple[bool, list[float]]:
        happens, sums = self.agreeing(numbers, frozenset(), finite=finite, on_gpu=self.finite())()
        if happens:
            self.exchange.accept()
        else:
            self.exchange.undo()
            self.exchange.told.clear()
        return happens, sums


class UnitHooks:
    """The all-reduce hooks of a model's units. They hand shards to the junction that is attached, and average
    them as FSDP's own all-reduce does while none is.

    ``kept``: the shards of units whose last backward did not leave the node, by index. Until a backward does,
    FSDP adds zeros to ``param.grad``. ``finish``: called when a backward is over that has left the node.
    ``owner``: what is attached."""

    def __init__(self, units: list[Unit], group: dist.ProcessGroup) -> None:
        self.junction: PerUnit | None = None
        self.finish: Callable[[], None] | None = None
        self.owner: object = None
        self.kept: dict[int, Tensor] = {}
        self._units = units
        self._group = group
        for index, unit in enumerate(units):
            unit.take_over(partial(self.hand_over, index))

    @torch.no_grad()
    def hand_over(self, index: int, shard: Tensor) -> None:
        unit, junction = self._units[index], self.junction
        if junction is not None:
            refuse_capture()
        if unit.waits or index in self.kept:
            unit.parts(shard)  # whether it is whole
        if index in self.kept:
            shard.add_(self.kept.pop(index))
        if unit.waits:
            self.kept[index] = shard.clone()
            shard.zero_()
        elif junction is None:
            dist.all_reduce(
                shard if unit.sums else shard.div_(self._group.size()), group=self._group
            )
        else:
            if not junction.pending and self.finish is not None:
                # FSDP ends its backward in such a callback, which it has asked for already.
                engine = torch.autograd.Variable._execution_engine
                engine.queue_callback(partial(engine.queue_callback, self.finish))
            junction.hand_over(index, shard.mul_(self._group.size()) if unit.sums else shard)


class ShardedModel:
    """A model that `fully_shard` has sharded on the inner dimension of a mesh, and where its exchange goes.

    Raises UserError where it does not suit. ``mesh``, ``dim``: None where the model has the whole mesh
    (HSDP). ``shard``, ``shards``: which part of each parameter this rank has, and of how many."""

    def __init__(self, model: Any, mesh: DeviceMesh | None, dim: str | None) -> None:
        self.model = model
        names = {id(p): name for name, p in _resharded(model).named_parameters()}
        self.units = [Unit(*unit, names) for unit in _units(model)]
        found = {name: param for unit in self.units for name, param in unit.parameters.items()}
        self.parameters: dict[str, nn.Parameter] = {
            name: p for name, p in model.named_parameters() if p.requires_grad
        }
        if not self.parameters:
            raise UserError("model: all its parameters are frozen; attach when some are to learn")
        if outside := self.parameters.keys() - found.keys():
            raise UserError(
                f"model: {min(outside)} is in no unit of fully_shard; call fully_shard on the whole model "
                "too, with the mesh of its other units"
            )
        self.mesh, given = _meshes(self.units[0].mesh, mesh, dim)
        self.parts: dict[str, Tensor] = {}
        for name in self.parameters:
            self._check(name, found[name], given)
            part: Tensor = found[name].sharded_param.to_local().detach()
            if part.numel():
                self.parts[name] = part
        self.shard, self.shards = self.mesh.get_local_rank(1), self.mesh.size(1)
        self.device = self.units[0].device
        self.group = self.mesh.get_group(0)

    def everybody(self) -> dist.ProcessGroup | None:
        """The group of all ranks of the mesh, None for the world. They call it together. Raises UserError."""
        ranks, world = self.mesh.mesh.flatten().tolist(), dist.get_world_size()
        if len(ranks) == world:
            return None
        if splits():
            raise UserError(
                f"mesh: it has {len(ranks)} of the world's {world} ranks, and the world was made with "
                "init_process_group(device_id=...), after which a new group needs all of them; leave "
                "device_id out, or shard over all ranks"
            )
        return group_of_some(ranks, self.mesh.get_all_groups(), self.device)

    def hooks(self) -> UnitHooks | None:
        """The hooks that an earlier exchange has left, None where none was attached. Raises UserError where
        one is, or the model has another's."""
        hooks = {id(hook): hook for unit in self.units if (hook := unit.hook) is not None}
        owners = {getattr(getattr(hook, "func", None), "__self__", None) for hook in hooks.values()}
        if not owners:
            return None
        own = owners.pop()
        if owners or not isinstance(own, UnitHooks):
            raise UserError(
                "model: it has an all-reduce hook already (set_all_reduce_hook), and FSDP allows one; shard "
                "the model again, without it"
            )
        if own.junction is not None:
            raise UserError(
                "model: a compressor is attached to it already; call detach() of what attach returned first"
            )
        return own

    def _check(self, name: str, parameter: Any, given: DeviceMesh) -> None:
        """``parameter``: torch's FSDPParam; ``given``: the mesh that `fully_shard` should have got."""
        mesh = parameter.sharded_param.device_mesh
        if mesh.ndim != given.ndim:
            raise UserError(
                f"model: {name} is sharded over a mesh of {mesh.ndim} dimensions, and other units over one "
                f"of {given.ndim}; give all units the same mesh, and leave tensor parallelism out"
            )
        if mesh.mesh.tolist() != given.mesh.tolist():
            raise UserError(
                f"mesh: {name} is sharded over ranks {mesh.mesh.tolist()}, and {given.mesh_dim_names} has "
                f"{given.mesh.tolist()}; give attach the mesh of which fully_shard has a part"
            )
        local = parameter.sharded_param.to_local()
        if local.device.type != self.mesh.device_type:
            raise UserError(
                f"model: {name} is on {local.device.type} and the mesh on {self.mesh.device_type}; attach "
                "after model.to_empty(), and leave CPUOffloadPolicy out"
            )
        mixed = parameter.mp_policy
        dtype = mixed.reduce_dtype or mixed.param_dtype or local.dtype
        if dtype not in (
            torch.float32,
            torch.bfloat16,
        ):  # FSDP divides others after the hook, in part
            kind = str(dtype).removeprefix("torch.")
            raise UserError(
                f"model: FSDP reduces the gradient of {name} in {kind}; give fully_shard "
                "mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32) or bfloat16"
            )


def _meshes(
    own: DeviceMesh, mesh: DeviceMesh | None, dim: str | None
) -> tuple[DeviceMesh, DeviceMesh]:
    """The mesh of two dimensions, nodes first, and what `fully_shard` should have got of it. ``own``: what
    its first unit has got; ``mesh``, ``dim``: arguments of `attach`. Raises UserError."""
    if own.ndim == 2:
        is_same = mesh is None or mesh.mesh.tolist() == own.mesh.tolist()
        if not is_same or dim not in (None, *(own.mesh_dim_names or ())[:1]):
            raise UserError(
                f"mesh, dim: fully_shard has got the mesh {own.mesh.tolist()}, whose rows are the nodes; "
                f"leave both out; got dim={dim!r}"
            )
        return own, own
    names: tuple[str, ...] = getattr(mesh, "mesh_dim_names", None) or ()
    if mesh is None or len(names) != 2 or dim != names[0]:
        raise UserError(
            "mesh, dim: a model that fully_shard has sharded over one dimension takes the mesh of two named "
            'dimensions, and the name of the outer one: init_device_mesh("cuda", (nodes, gpus), '
            'mesh_dim_names=("node", "gpu")) and dim="node" where fully_shard has mesh["gpu"]; got '
            f"dimensions {names} and dim={dim!r}"
        )
    return mesh, mesh[names[1]]


def is_sharded(model: object) -> bool:
    """Whether `fully_shard` has been called on this module."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def _resharded(model: Any) -> nn.Module:
    """The model, with its sharded parameters in place: after a forward the root's may not be."""
    if not is_sharded(model):
        raise UserError(
            f"model: with mesh, attach takes a model that fully_shard has sharded, got {type(model).__name__}"
        )
    for module in filter(is_sharded, model.modules()):
        module.reshard()
    sharded: nn.Module = model
    return sharded


def _units(model: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """Name, module and torch's group of each unit that has parameters."""
    seen: set[int] = set()  # several modules may be one unit
    module: Any
    for name, module in model.named_modules():
        if not is_sharded(module):
            continue
        state: Any = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        if len(groups) > 1:
            raise UserError(
                f"model: the unit {name!r} is sharded over several meshes (shard_placement_fn); use one"
            )
        for group in groups:
            if group is not None and id(group) not in seen:
                seen.add(id(group))
                yield name, module, group
