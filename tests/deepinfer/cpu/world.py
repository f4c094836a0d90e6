"""A machine without a GPU on which DeepInfer's own LLMEngine, Worker and scheduler run: everything that needs a device or
weights is replaced from outside the package; no file of it is changed.

    import world; world.install(script)          before anything of deepinfer is imported

Replaced: kernel libraries (inert modules), torch.cuda's events and streams, the platform (gloo), the tokenizer object, the
profile of memory (NEREID_CPU_BLOCKS, default 64), forward pass and sampling (they follow a script.Script). The real
CacheEngine allocates the real layout in shared memory. NEREID_CPU_STEP_MS paces the forward pass.
Environment: NEREID_DEEPINFER_PACKAGE and NEREID_DEEPINFER_OUT, the folders that tools/dev/deepinfer.sh made.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys
import time
import types
from types import SimpleNamespace
from typing import Any

ABSENT = ("tilelang", "tile_kernels", "deep_gemm", "deep_ep", "deep_select", "flash_attn", "flash_mla", "cutlass", "pynvml")


class Inert:
    """Whatever is done with it at import time. As a decorator it gives back what it decorates."""

    def __init__(self, name: str = "absent") -> None:
        self.__dict__["__name__"] = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{self.__dict__['__name__']}.{name}")

    def __getitem__(self, _: Any) -> Any:
        return self

    def __setitem__(self, *_: Any) -> None: ...

    def __iter__(self) -> Any:
        return iter(())

    def __mro_entries__(self, _: Any) -> Any:
        return (object,)

    def __int__(self) -> int:
        return 1

    __index__ = __int__

    def __lt__(self, _: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def _same(self, *_: Any) -> Any:
        return self

    __or__ = __ror__ = __and__ = __rand__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __truediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __pow__ = __rpow__ = __lshift__ = __rlshift__ = __rshift__ = _same
    __neg__ = __invert__ = _same


class _AbsentModule(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{self.__name__}.{name}")


class _AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _AbsentModule(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__path__ = []


class CpuEvent:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: CpuEvent) -> float:
        return (other.at - self.at) * 1e3


class CpuStream:
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def wait_stream(self, *_: Any) -> None: ...

    def __enter__(self) -> CpuStream:
        return self

    def __exit__(self, *_: Any) -> bool:
        return False


def _install_cuda() -> None:
    import torch

    torch.cuda.Event, torch.cuda.Stream = CpuEvent, CpuStream  # type: ignore[misc,assignment]
    torch.cuda.current_stream = lambda *a, **k: CpuStream()  # type: ignore[assignment]
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_sync_debug_mode = lambda: 0
    torch.cuda.set_sync_debug_mode = lambda *_: None
    torch.Tensor.cuda = lambda self, *a, **k: self  # type: ignore[method-assign]


def _load_package() -> Any:
    package, out = os.environ["NEREID_DEEPINFER_PACKAGE"], os.environ["NEREID_DEEPINFER_OUT"]
    sys.dont_write_bytecode = sys.pycache_prefix is None  # nothing is written into the package's folder
    sys.path[:0] = [package]
    sys.path.append(out)  # nereid_peek
    import torch  # noqa: F401  (libtorch is loaded before the module)

    import deepinfer

    deepinfer.__path__.append(out)
    import deepinfer._C.engine as engine

    return engine


def model_folder() -> str:
    return str(pathlib.Path(__file__).with_name("model"))


def byte_tokenizer() -> Any:
    """A tokenizer whose ids 0..255 are the bytes and whose end is id 1, as Hugging Face has it: xgrammar wants one."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    vocabulary = {chr(b if b in printable else next(others)): b for b in range(256)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=next(t for t, i in vocabulary.items() if i == 1))


def tokenizer_of(model: str) -> Any:
    file = pathlib.Path(model) / "tokenizer.json"
    if not file.is_file():
        return byte_tokenizer()
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<\uff5cend\u2581of\u2581sentence\uff5c>")


def _constrained(m: Any, wanted: int, vocabulary: int) -> tuple[int, int]:
    """What the sampler does with a request's grammar (Sampler._get_so_mask), one token at a time: (token, so_status)."""
    from xgrammar import allocate_token_bitmask

    status = m.so_status
    if status <= 0 or m.last_output_token == -1:
        return wanted, status
    matcher = m.so_matcher
    if matcher is None or matcher.is_aborted():
        return wanted, -1
    if status == 2:
        for token in [*m.last_accepted_token, m.last_output_token]:
            assert matcher.accept_token(token), f"the matcher rejects {token}"
    if not matcher.constrained():
        return wanted, 2
    mask = allocate_token_bitmask(1, vocabulary)
    assert matcher.fill_vocab_mask(mask, 0)
    words = mask[0].tolist()
    if words[wanted >> 5] >> (wanted & 31) & 1:
        return wanted, 2
    if any(words[1:]) or words[0] & ~2:
        words[0] &= ~2  # the end (1) only when nothing else may come
    at = next(i for i, word in enumerate(words) if word)
    return at * 32 + (words[at] & -words[at]).bit_length() - 1, 2


def _write_kv(runner: Any, seqs: list[Any]) -> None:
    """The invented KV: each block and each state hold bytes that only the tokens before their end decide."""
    import zlib

    import nereid_peek
    import torch

    engine = runner.engine
    cache = engine.driver_worker.cache_engine
    block, state = (torch.arange(int(t.shape[1]), dtype=torch.int64) for t in (cache.gpu_blocks, cache.gpu_states))

    def pattern(line: Any, tokens: list[int]) -> Any:
        seed = zlib.crc32(repr(tokens).encode())
        return ((line * (2 * (seed & 0xFFFF) + 1) + (seed >> 16)) >> 3).to(torch.uint8)

    for seq in seqs:
        prompt = runner.prompts[seq.request_id]
        end = min(seq.get_len() - seq.chunked_rest_len, len(prompt))
        table = nereid_peek.block_table(seq)
        for at in range(seq.num_cached_tokens // 128, -(-end // 128)):
            cache.gpu_blocks[table[at]] = pattern(block, prompt[: min(end, (at + 1) * 128)])
        cache.gpu_states[seq.state_id] = pattern(state, prompt[:end])


def record_prompts(runner: Any) -> None:
    """With NEREID_CPU_KV=1 a prefill writes KV (_write_kv). NEREID_CPU_TRACE names a file that gets a line per step:
    {"prompt", "rows": [[request, tokens]], "kv": {request: CRC of the whole blocks of a decoding request's prompt}}."""
    from nereid_deepinfer.hooks import Hooks

    original, add = Hooks.post_schedule, None

    def post_schedule(self: Any, outputs: Any) -> None:
        runner.engine, runner.scheduled = self, list(outputs.scheduled_seqs)
        original(self, outputs)

    Hooks.post_schedule = post_schedule  # type: ignore[method-assign]
    from deepinfer.engine.llm_engine import LLMEngine

    add = LLMEngine.add_request

    def add_request(self: Any, user_id: str, request_id: str, *args: Any, **kwargs: Any) -> Any:
        runner.prompts[request_id] = args[1].tolist()
        return add(self, user_id, request_id, *args, **kwargs)

    add_request.__signature__ = __import__("inspect").signature(add)  # type: ignore[attr-defined]
    LLMEngine.add_request = add_request


def _experts() -> Any:
    """Two layers of invented experts over the expert-parallel group, driven by the engine's own balancer: (balancer, weights)."""
    import torch
    from deepinfer.model_executor import eplb
    from deepinfer.model_executor.parallel_utils.parallel_state import PG

    group = PG.expert_parallel_group()
    logical, extra, layers = 8, 4, 2
    local = (logical + extra) // group.size()
    first = group.rank() * local
    weights = [[torch.arange(first, first + local, dtype=torch.float32).remainder(logical).unsqueeze(1).clone()] for _ in range(layers)]
    balancer = eplb.ExpertLoadBalancer(weights, layers, logical, logical + extra, group, logical, extra, False)
    eplb.set_current(eplb.ExpertLoadBalancerManager([(balancer, list(range(layers)))], layers))
    return balancer, weights


def _step_experts(runner: Any, prompt: bool) -> None:
    """A step's counts; what is installed goes to NEREID_CPU_EXPERTS-RANK when it changes."""
    balancer, weights = runner.experts
    balancer.expert_count += 1 + balancer._ep_group.rank()
    from deepinfer.model_executor import eplb

    before = balancer.physical_to_logical_map.tolist()
    eplb.current().step(prompt)
    if balancer.physical_to_logical_map.tolist() != before:
        pathlib.Path(f"{os.environ['NEREID_CPU_EXPERTS']}-{balancer._ep_group.rank()}").write_text(json.dumps({
            "physical": balancer.physical_to_logical_map.tolist(), "logical": balancer.logical_to_physical_map.tolist(),
            "counts": balancer.logical_count.tolist(), "weights": [w[0].squeeze(1).tolist() for w in weights],
            "step": runner.steps}))


def _trace_line(runner: Any, prompt: bool, rows: list[Any]) -> None:
    import zlib

    import nereid_peek

    kv = {}
    if not prompt:
        blocks = runner.engine.driver_worker.cache_engine.gpu_blocks
        for seq in runner.scheduled:
            whole = nereid_peek.block_table(seq)[: (len(runner.prompts[seq.request_id]) - 1) // 128]
            kv[seq.request_id] = zlib.crc32(b"".join(blocks[b].numpy().tobytes() for b in whole))
    with open(os.environ["NEREID_CPU_TRACE"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"prompt": prompt, "rows": [[m.request_id, m.seqlen_q] for m in rows], "kv": kv}) + "\n")


def _runner(script: Any) -> type:
    import torch
    from deepinfer import envs
    from deepinfer.model_executor.model_metadata_utils import ModelMetadata
    from deepinfer.sequence import DeepInferTopkInfo, MTPPredictInfo, SampledInfo, SamplerOutput
    from deepinfer.worker import cache_engine, model_runner

    pace = float(os.environ.get("NEREID_CPU_STEP_MS", "0")) / 1e3

    fails_at = int(os.environ.get("NEREID_CPU_FAIL_AT", str(1 << 60)))
    writes, traced = os.environ.get("NEREID_CPU_KV") == "1", "NEREID_CPU_TRACE" in os.environ

    class ScriptedRunner(model_runner.ModelRunner):
        trace: list[Any] = []
        engine: Any = None
        scheduled: list[Any] = []
        prompts: dict[str, list[int]] = {}
        experts: Any = None
        steps = 0

        def load_model(self, skip_load: bool = False) -> None:
            cfg = self.model_config.model_cfg.gpt
            self.model = SimpleNamespace(cfg=cfg, MTP_module=None, model_metadata=ModelMetadata(cfg))
            self.window_size = cfg.window_size[0]
            self.swa_block_size = cache_engine.get_kvstore_swa_block_size(self.window_size)
            self.yoco_prefill_truncation_mode = envs.DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE
            self.max_num_blocks = ((self.model_config.runtime_max_model_len + self.block_size - 1) // self.block_size + 63) // 64 * 64
            self._deadline = 0.0
            if "NEREID_CPU_EXPERTS" in os.environ:
                ScriptedRunner.experts = _experts()

        def destroy_cuda_graphs(self) -> None: ...

        def execute_main_model(self, seq_metadata_list: Any, kv_caches: Any, metadata_zos: Any = None, total_q: Any = None) -> Any:
            rows = [] if seq_metadata_list[0].request_id == "placeholder" else seq_metadata_list
            self.trace.append([bool(seq_metadata_list[0].is_prompt), sorted([m.request_id, m.seqlen_q] for m in rows)])
            if writes and seq_metadata_list[0].is_prompt and rows:
                _write_kv(ScriptedRunner, self.scheduled)
            if traced and rows:
                _trace_line(ScriptedRunner, bool(seq_metadata_list[0].is_prompt), rows)
            if ScriptedRunner.steps >= fails_at:
                raise RuntimeError("the invented device is lost")
            if pace:
                # Work on a device goes on while the driver's thread does other things: the pass ends `pace` after it was
                # launched, which is waited for where the engine would wait.
                self._deadline = max(self._deadline, time.perf_counter()) + pace
            return model_runner.MainModelOutput(
                model_output=object(),
                input_metadata=SimpleNamespace(is_prompt=seq_metadata_list[0].is_prompt, num_reqs=len(seq_metadata_list)))

        def execute_sample(self, seq_metadata_list: Any, input_metadata: Any, model_output: Any, kv_caches: Any) -> Any:
            if pace:
                time.sleep(max(0.0, self._deadline - time.perf_counter()))
            prompt = input_metadata.is_prompt
            ScriptedRunner.steps += 1
            if "NEREID_CPU_EXPERTS" in os.environ:
                _step_experts(ScriptedRunner, bool(prompt))
            n = len(seq_metadata_list)
            last, rows, starts, accepted, so_status = [], [], [], [], []
            most_top = max((int(m.sampling_params.top_logprobs or 0) for m in seq_metadata_list if m.sampling_params), default=0)
            for m in seq_metadata_list:
                k = 0 if prompt or not self.nextn or m.so_status > 0 else min(script.accept, m.seqlen_q - 1)
                whole = not prompt or m.is_last_prompt_chunk
                said = [script.next(m.request_id) for _ in range(k + 1)] if whole else [0]
                if m.request_id != "placeholder" and whole:
                    said[-1], status = _constrained(m, said[-1], self.model_config.get_vocab_size())
                else:
                    status = m.so_status
                so_status.append(status)
                starts.append(len(rows))
                accepted.append(k)
                rows += said[:k] + [-1] * (m.seqlen_q - k)
                last.append(said[k])
            out = SamplerOutput(sampled_token=SampledInfo(
                bs=n, token_ids=torch.tensor(last, dtype=torch.int32), token_logprobs=torch.full((n,), -0.5)), post_funcs=[])
            if most_top:
                ids = torch.tensor([[t + i for i in range(most_top)] for t in last], dtype=torch.int32)
                out.sampled_token.topk_tokens = DeepInferTopkInfo(tokens=ids, logps=torch.tensor([[-0.5 - i for i in range(most_top)]] * n))
            if not prompt and self.nextn:
                out.verified_tokens = SampledInfo(bs=n, is_verified_token=True, token_ids=torch.tensor(rows, dtype=torch.int32),
                                                  token_logprobs=torch.full((len(rows),), -0.5))
                if most_top:
                    out.verified_tokens.topk_tokens = DeepInferTopkInfo(
                        tokens=torch.tensor([[t + i for i in range(most_top)] for t in rows], dtype=torch.int32),
                        logps=torch.tensor([[-0.5 - i for i in range(most_top)]] * len(rows)))
                out.first_token_positions = torch.tensor(starts, dtype=torch.int32)
                out.predict_tokens = MTPPredictInfo(token_ids=torch.full((n, self.nextn), 3000, dtype=torch.int32))
                out.num_accepted_tokens_gpu = torch.tensor(accepted, dtype=torch.int32)
                out.predict_token_ids_gpu = out.predict_tokens.token_ids
            out.sampled_token_ids_gpu = out.sampled_token.token_ids
            if prompt:
                out.prompt_logprobs = [None] * n
            if any(so_status):
                out.so_status = so_status
            return out

    return ScriptedRunner


def install(script: Any) -> Any:
    """Returns the runner's class, whose `trace` tells what was computed."""
    for name, value in {"CUDA_VISIBLE_DEVICES": "0", "MASTER_ADDR": "127.0.0.1", "DEEPINFER_ENFORCE_EAGER": "1",
                        "DEEPINFER_USE_MULTIMODAL_POOL": "0", "DEEPINFER_ACCELERATOR": "nvidia",
                        "DEEPINFER_CPP_LOG_LEVEL": "error"}.items():
        os.environ.setdefault(name, value)
    if "MASTER_PORT" not in os.environ:
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ["MASTER_PORT"] = str(probe.getsockname()[1] + 50)  # the engine takes MASTER_PORT - 50
    sys.meta_path.append(_AbsentFinder({n for n in ABSENT if importlib.util.find_spec(n) is None}))
    import torch

    torch.set_num_threads(1)
    _install_cuda()
    _load_package()
    import deepinfer
    import numpy as np
    from deepinfer.platform import PlatformGPU

    class CpuPlatform(PlatformGPU):
        distributed_backend = "gloo"
        is_gpu = property(lambda self: False)  # no CUDA-graph probes, no user buffers

        def pin_host_memory(self, tensor: Any) -> None: ...

        def unpin_host_memory(self, ptr: Any) -> None: ...

        def get_distributed_options(self) -> None: ...

    deepinfer.PLATFORM = CpuPlatform()
    from deepinfer.engine import llm_engine
    from deepinfer.model_executor.models.v4_modules.engram import CompressedTokenizer
    from deepinfer import utils
    from deepinfer.worker import base, cache_engine, worker

    runner = _runner(script)
    if os.environ.get("NEREID_CPU_KV") == "1" or "NEREID_CPU_TRACE" in os.environ:
        record_prompts(runner)
    blocks = int(os.environ.get("NEREID_CPU_BLOCKS", "64"))

    def profile(self: Any) -> int:
        self.cache_config.num_gpu_blocks = blocks
        return blocks

    def init_cache(self: Any) -> None:
        self.cache_engine = cache_engine.CacheEngine(self.cache_config, self.model_runner.model.cfg, self.model_config.max_num_seqs)
        self.gpu_cache = self.cache_engine.gpu_cache

    def init_engram(self: Any) -> None:
        if self.model_config.use_compressed_tokenizer:
            table = [t // 2 for t in range(self.model_config.get_vocab_size())]
            CompressedTokenizer.lookup_table = table
            CompressedTokenizer.lookup_table_np = np.asarray(table, dtype=np.int32)

    worker.compute_seqlens_k_zos = lambda *a, **k: None
    base.ModelRunner = runner
    base.WorkerBase._init_torch = lambda self: None
    base.WorkerBase.init_model = lambda self: None
    base.WorkerBase.profile_num_available_blocks = profile
    base.WorkerBase.init_cache_engine = init_cache
    base.WorkerBase.init_engram = init_engram
    cache_engine.show_gpu_memory_stats = lambda *a, **k: None
    llm_engine.get_bf16_tflops_limit = lambda: 1000.0
    llm_engine.get_hf_tokenizer = lambda model, *a, **k: tokenizer_of(str(model))
    for module in (utils, llm_engine):
        if hasattr(module, "get_actual_num_gpus"):
            module.get_actual_num_gpus = lambda: 1  # one invented device
    llm_engine._get_model_architecture = lambda config: type("TextOnly", (), {})  # no multimodal worker
    return runner
