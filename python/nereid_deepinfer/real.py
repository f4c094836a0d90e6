"""The real LLMEngine as a Runtime. Imports deepinfer, so only a rank of an engine imports this."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import pathlib
from collections.abc import Callable
from typing import Any

from nereid_deepinfer import cost, crc32c, ebnf, hooks
from nereid_deepinfer.config import Config
from nereid_deepinfer.experts import ExpertControl, ExpertFolder
from nereid_deepinfer.keys import layout_fingerprint
from nereid_deepinfer.runtime import Runtime
from nereid_deepinfer.wire import EngineInfo, GrammarKind, KvLayout, KvSlice, Replay, Role

BLOCK = 128
_ROLES = {"NORMAL": Role.UNIFIED, "PROMPT": Role.PREFILL, "COMPLETION": Role.DECODE}


def deepinfer_version() -> str:
    """Of the installed package; of a source tree its PKG-INFO."""
    try:
        return importlib.metadata.version("deepinfer")
    except importlib.metadata.PackageNotFoundError:
        import deepinfer

        for folder in deepinfer.__path__:
            info = pathlib.Path(folder).parent / "PKG-INFO"
            if info.is_file():
                for line in info.read_text(encoding="utf-8").splitlines():
                    if line.startswith("Version: "):
                        return line.removeprefix("Version: ").strip()
        return "unknown"


class TorchArenas:
    """The two arenas of the driver's worker. Copies to and from the host are synchronous: 7 MB and 3 MB for a prompt of 8 K
    tokens. Copies of states stay on the device."""

    def __init__(self, engine: Any) -> None:
        import numpy as np
        import torch
        from deepinfer import envs
        from deepinfer.worker.cache_engine import GPUCacheInterface

        self._np, self._torch, self._interface = np, torch, GPUCacheInterface
        self._stream: Any = None  # of copies beside the loop
        cache = engine.driver_worker.cache_engine
        self.blocks, self.states = cache.gpu_blocks, cache.gpu_states
        self.block_bytes = int(self.blocks.shape[1])
        self.slot_bytes = int(GPUCacheInterface.total_bytes_inference)
        self.persisted_bytes = int(cache.state_size_to_disk)
        self.layout = [tuple(int(v) for v in s) for s in cache.kvcache_layout]
        self.extra_state = bool(envs.DEEPINFER_PREFILL_STORE_EXTRA_STATE)
        self.ring = int(GPUCacheInterface.swa_block_size_kvstore)
        self.ring_slack = self.ring - 128

    def _host(self, view: memoryview) -> Any:
        return self._torch.from_numpy(self._np.frombuffer(view, dtype=self._np.uint8))

    def read_blocks(self, ids: list[int], out: memoryview) -> None:
        chosen = self.blocks[self._torch.tensor(ids, device=self.blocks.device)]
        self._host(out).copy_(chosen.view(-1))

    def write_blocks(self, ids: list[int], data: memoryview) -> None:
        host = self._host(data).view(len(ids), self.block_bytes)
        self.blocks[self._torch.tensor(ids, device=self.blocks.device)] = host.to(self.blocks.device)

    def copy_state(self, state_id: int, position: int, whole: bool) -> Any:
        return self._interface.select_state_slice_to_store(state_id, position, self.states, TO_CE=whole).clone()

    def load_state(self, state_id: int, position: int, state: Any, whole: bool) -> None:
        state = state.to(self.states.device)
        if whole:
            self.states[state_id, : self.slot_bytes] = state
        else:
            self._interface.load_state_from_store_to_prefill_cache(state_id, position, state[: self.persisted_bytes], self.states)

    def state_bytes(self, state: Any, out: memoryview) -> None:
        self._host(out).copy_(state[: len(out)])

    def mark(self) -> Any:
        if self.blocks.device.type == "cpu":
            return None
        event = self._torch.cuda.Event()
        event.record()
        return event

    def beside(self, mark: Any) -> Any:
        if mark is None:
            return contextlib.nullcontext()
        if self._stream is None:
            self._stream = self._torch.cuda.Stream()
        self._stream.wait_event(mark)
        return self._torch.cuda.stream(self._stream)

    def state_from(self, data: memoryview) -> Any:
        return self._host(data).clone()

    def fill(self, block: int | None, slot: int | None, value: int) -> None:
        """For tests."""
        if block is not None:
            self.blocks[block].fill_(value)
        if slot is not None:
            self.states[slot].fill_(value)


def _layout(engine: Any, arenas: TorchArenas) -> KvLayout:
    """Everything that changes the bytes of a block or a state is in it: it names the KV namespace."""
    from deepinfer import envs

    gpt = engine.model_config.model_cfg.gpt
    fp4 = bool(gpt.use_fp4_sparse_kv)
    mode = str(envs.DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE)
    keep = int(envs.DEEPINFER_YOCO_PREFILL_KEEP_TOKENS or 0)
    detail = (f"deepinfer={deepinfer_version()},kv={'fp4' if fp4 else 'mxfp8'},yoco={mode},keep={keep},ring={arenas.ring},"
              f"extra={int(arenas.extra_state)},nextn={int(envs.DEEPINFER_USE_NEXTN_DECODE)},"
              f"batch_invariant={int(bool(envs.DEEPINFER_BATCH_INVARIANT))},accelerator={envs.DEEPINFER_ACCELERATOR}")
    slices = [KvSlice(layer, offset, length, "index_k+latent") for layer, offset, length in arenas.layout]
    return KvLayout("deepinfer/v4.1", BLOCK, arenas.block_bytes, arenas.persisted_bytes, max(1, keep if mode != "off" else 1),
                    detail, slices)


def _grammar_compiler(engine: Any) -> None:
    """LLMEngine makes it at the first request with a grammar: on the loop's thread, seconds for a vocabulary of 129 280, and
    on a machine with too few cores it raises out of add_request, which would take the group down. So: now."""
    try:
        builder = engine.so_matcher_builder  # a property that builds
    except (RuntimeError, ZeroDivisionError) as bad:
        raise hooks.Unsupported(f"grammars cannot be compiled on this machine ({bad}): lower grammar_cpus, or set "
                                "structured_output = false") from None
    try:
        ebnf.install(builder._compiler)
    except AttributeError as bad:
        raise hooks.Unsupported(f"DeepInfer's compiler of grammars is another one: {bad}") from None


def start(config: Config, rank: int) -> Runtime:
    """Builds the engine of one rank (minutes on a real machine). hooks.Unsupported names what differs from 0.1.0."""
    import numpy as np
    from deepinfer.engine.llm_engine import LLMEngine

    hooks.check(LLMEngine, deepinfer_version())
    import nereid_peek
    crc32c.use(nereid_peek.crc32c)
    from deepinfer import envs
    from deepinfer._C import engine as native
    from deepinfer.engine.arg_utils import EngineArgs
    from deepinfer.engine.engine_type import EngineType

    engine = hooks.served(LLMEngine).from_engine_args(
        EngineArgs(engine_type=EngineType[config.engine_type], **config.engine_args(rank)))
    if config.structured_output and config.engine_type != "COMPLETION":
        _grammar_compiler(engine)
    arenas = TorchArenas(engine)
    layout = _layout(engine, arenas)
    mode = str(envs.DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE)
    nextn = int(envs.DEEPINFER_USE_NEXTN_DECODE)
    model_config = pathlib.Path(config.model) / "config.json"
    digest = hashlib.sha256(model_config.read_bytes() + json.dumps(config.served_model_name).encode()).digest()
    info = EngineInfo(
        engine="deepinfer", engine_version=deepinfer_version(), model_id=config.served_model_name, model_digest=digest,
        vocab_size=int(engine.model_config.get_vocab_size()), context_tokens=int(engine.model_config.max_model_len),
        eos_ids=[int(engine.eos_id)], layout=layout, roles=_ROLES[config.engine_type],
        grammars=0 if config.engine_type == "COMPLETION" or not config.structured_output
        else GrammarKind.JSON_SCHEMA | GrammarKind.REGEX | GrammarKind.EBNF,
        logprobs=True, max_top_logprobs=20, seeds=True, images=engine.multi_modal_processor is not None,
        speculation=nextn > 0,
        deterministic=bool(envs.DEEPINFER_BATCH_INVARIANT) and not envs.DEEPINFER_ENABLE_MTP_VARLEN,
        replay=Replay.EXACT if mode == "off" else Replay.BOUNDED, max_running=int(config.max_num_seqs),
        max_queued=config.max_queued, kv_capacity_tokens=engine.block_manager.get_num_free_blocks() * BLOCK,
        data_parallel_rank=rank % config.data_parallel_size, data_parallel_size=config.data_parallel_size)
    return Runtime(
        engine=engine, output=native.RequestOutput, status=native.SequenceStatus, peek=nereid_peek, arenas=arenas,
        tokens=lambda ids: np.asarray(ids, dtype=np.int32), info=info, engine_type=config.engine_type,
        data_parallel=config.data_parallel_size, nextn=nextn, keep_tokens=layout.replay_tokens, exact_states=mode == "off",
        chunked_prefill=config.chunked_prefill,
        image_token=-1 if engine.multi_modal_processor is None else int(engine.multi_modal_processor.mm_config.image_token_id))


def arena_handles(arenas: TorchArenas) -> dict[str, Any]:
    """What another process of this machine needs to reach the arenas by block id without the loop: DeepInfer's own records
    (cuda_utils.import_ipc_tensor takes them; CUDA IPC on a device) and the sizes. Blocks of a held request do not change."""
    from deepinfer._C import cuda_utils

    out: dict[str, Any] = {"block_bytes": arenas.block_bytes, "slot_bytes": int(arenas.states.shape[1])}
    for name, tensor in (("gpu_blocks", arenas.blocks), ("gpu_states", arenas.states)):
        size = tensor.numel() * tensor.element_size()
        out[name] = {"bytes": size, "handle": bytes(cuda_utils.export_ipc_tensor(tensor.data_ptr(), size)).hex()}
    return out


def reports(runtime: Runtime, config: Config, rank: int, log: Callable[[str], None]) -> ExpertFolder | None:
    """What balancers read (config.report_folder): cost.json now; the returned one is called before each step."""
    if not config.report_folder:
        return None
    folder = pathlib.Path(config.report_folder)
    if rank == 0:
        keep = config.yoco_keep_tokens if config.yoco_truncation != "off" else 0
        cost.write(folder, cost.cost_source(runtime.engine, int(runtime.info.context_tokens), config.yoco_truncation, keep,
                                            runtime.nextn))
    handles = folder / f"arenas-{rank}.json"
    handles.touch(mode=0o600)
    handles.write_text(json.dumps(arena_handles(runtime.arenas)))  # type: ignore[arg-type]
    if not config.rebalance_interval:
        return None
    import torch
    import torch.distributed as dist
    from deepinfer.model_executor.parallel_utils.parallel_state import PG

    def agree(number: int) -> tuple[int, int]:
        if config.data_parallel_size == 1:
            return number, number
        both = torch.tensor([number, -number], dtype=torch.int64)
        dist.all_reduce(both, op=dist.ReduceOp.MIN, group=PG.cpu_data_parallel_group())
        return int(both[0]), -int(both[1])

    control = ExpertControl()
    control.install_override()
    return ExpertFolder(control, folder, rank, agree, log)


__all__ = ["TorchArenas", "deepinfer_version", "layout_fingerprint", "reports", "start"]
