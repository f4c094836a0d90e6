"""One typed configuration of a group of ranks: LLMEngine's arguments, and its environment for NVIDIA SM100 or Ascend 950.

A TOML file (deploy/deepinfer/*.toml). An unknown key, a wrong type or a combination that the engine would reject minutes
later, or hang on, is a ConfigError with the key and the mend. DeepInfer reads its environment once, at import: `environment`
is complete before a rank starts, and every DEEPINFER_* variable that is not here is left at the engine's default.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tomllib
from dataclasses import dataclass, field
from typing import Any

ENGINE_TYPES = ("NORMAL", "PROMPT", "COMPLETION")
ACCELERATORS = {"sm100": "nvidia", "ascend950": "ascend"}
WINDOW = 128


class ConfigError(Exception):
    pass


@dataclass
class Config:
    # --- the model and the group
    model: str = ""  # folder with config.json, tokenizer and weights
    served_model_name: str = ""  # what clients call it; empty: the folder's name
    engine_type: str = "NORMAL"  # NORMAL: prefill and decode; PROMPT, COMPLETION: one of them
    accelerator: str = "sm100"  # sm100 or ascend950
    load_format: str = "auto"  # auto, or dummy for random weights
    data_parallel_size: int = 1  # ranks of the group on all machines: one process each
    context_parallel_size: int = 1  # devices of a rank; prefill only
    expert_parallel_size: int = 1
    first_rank: int = 0  # the first rank on this machine
    ranks_here: int = 0  # ranks on this machine; 0: all of the group
    devices: list[int] = field(default_factory=list)  # device ids on this machine; empty: 0, 1, ...
    master_addr: str = "127.0.0.1"  # of the machine with rank 0
    master_port: int = 23333
    group: int = 0  # groups that share a master port differ here
    # --- sizes
    max_model_len: int = 65536
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 0  # 0: the engine's own
    memory_utilization: float = 0.9
    chunked_prefill: bool = True
    max_queued: int = 512
    # --- KV
    drafts: int = 5  # speculative tokens; 0 = none
    yoco_truncation: str = "compact"  # off, mask, compact; a stored prefix needs mask or compact
    yoco_keep_tokens: int = 140
    store_extra_state: bool = False  # rings of 402 tokens: a state can be kept wherever prefill ends, for 6 MB more a slot
    prefix_share: float = 0.3
    prefix_entries: int = 64
    hold_lease_s: float = 30.0
    kv_socket: str = ""  # of this machine's KV node (nereid cache serve); empty: none
    kv_wait_ms: int = 500  # the longest that a prompt waits for the node
    kv_secret_file: str = ""  # the node's secret, if it has one
    kv_library: str = ""  # libnereid_kv.so.1; empty: where nereid_kv finds it
    kv_ttl_s: int = 0  # life of what is saved; 0: the node's default
    # --- answers
    deterministic: bool = False  # DEEPINFER_BATCH_INVARIANT, fixed verification: slower
    structured_output: bool = True
    grammar_timeout_s: int = 20
    grammar_cpus: int = 4  # of a rank, for compiling grammars; the machine must have so many per device
    # --- scheduling of a NORMAL engine: decode steps between attempts to prefill
    prefill_interval: int = 70
    prefill_any_interval: int = 8  # 100 in the engine: with one idle rank of two a first prompt would wait 100 steps
    # --- experts
    extra_experts: int = 0
    rebalance_interval: int = 0  # steps between the engine's own rebalancing; 0 = never, and no counts either
    # --- for balancers
    report_folder: str = ""  # gets cost.json and experts-RANK.json; plan.json in it is installed (docs/ops/deepinfer.md)
    # --- other
    log_interval_steps: int = 100
    gloo_timeout_s: int = 600  # 14400 in the engine: how long a group hangs when a rank on another machine died
    python: str = ""  # interpreter with DeepInfer; empty: the one that runs this
    prepare: str = ""  # a Python file that a rank runs first (tests: a machine without a device)
    extra_environment: dict[str, str] = field(default_factory=dict)

    # ------------------------------------------------------------ reading

    @staticmethod
    def load(path: str) -> Config:
        try:
            data = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except OSError as bad:
            raise ConfigError(f"{path}: {bad.strerror}. Mend: name the group's TOML file.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as bad:
            raise ConfigError(f"{path}: {bad}") from None
        try:
            return Config.of(data)
        except ConfigError as bad:
            raise ConfigError(f"{path}: {bad}") from None

    @staticmethod
    def of(data: dict[str, Any]) -> Config:
        known = {f.name: f for f in dataclasses.fields(Config)}
        config = Config()
        for key, value in data.items():
            if key not in known:
                raise ConfigError(f"{key}: no such key. Known: {', '.join(sorted(known))}")
            default = getattr(config, key)
            if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is not type(default):
                raise ConfigError(f"{key} = {value!r} is a {type(value).__name__}, not a {type(default).__name__}")
            if key == "devices" and not all(type(d) is int and d >= 0 for d in value):
                raise ConfigError("devices holds something that is no device id")
            if key == "extra_environment" and not all(isinstance(v, str) for v in value.values()):
                raise ConfigError("extra_environment holds something that is no string")
            setattr(config, key, value)
        config.validate()
        return config

    def validate(self) -> None:
        def need(holds: bool, key: str, mend: str) -> None:
            if not holds:
                raise ConfigError(f"{key} = {getattr(self, key)!r}: {mend}")

        need(bool(self.model), "model", "name the model's folder")
        need((pathlib.Path(self.model) / "config.json").is_file(), "model", "there is no config.json in this folder")
        self.served_model_name = self.served_model_name or pathlib.Path(self.model).resolve().name
        need(self.engine_type in ENGINE_TYPES, "engine_type", f"one of {', '.join(ENGINE_TYPES)}")
        need(self.accelerator in ACCELERATORS, "accelerator", f"one of {', '.join(ACCELERATORS)}")
        need(self.load_format in ("auto", "dummy"), "load_format", "auto or dummy")
        for key in ("data_parallel_size", "context_parallel_size", "expert_parallel_size", "max_num_seqs", "prefill_interval",
                    "prefill_any_interval", "gloo_timeout_s", "grammar_timeout_s", "grammar_cpus",
                    "kv_wait_ms"):
            need(getattr(self, key) >= 1, key, "at least 1")
        for key in ("first_rank", "ranks_here", "group", "max_num_batched_tokens", "max_queued", "drafts", "prefix_entries",
                    "extra_experts", "rebalance_interval", "yoco_keep_tokens", "kv_ttl_s"):
            need(getattr(self, key) >= 0, key, "not negative")
        need(self.max_model_len >= 2 * WINDOW, "max_model_len", f"at least {2 * WINDOW}")
        need(0 < self.memory_utilization < 1, "memory_utilization", "between 0 and 1")
        need(0 <= self.prefix_share <= 0.8, "prefix_share", "between 0 and 0.8")
        need(self.hold_lease_s > 0, "hold_lease_s", "more than 0")
        need(not self.kv_secret_file or pathlib.Path(self.kv_secret_file).is_file(), "kv_secret_file", "there is no such file")
        need(not self.kv_socket or self.yoco_truncation != "off", "kv_socket",
             "a stored prefix needs yoco_truncation: the decoder layers' windows are not kept")
        need(not self.kv_socket or self.engine_type != "COMPLETION", "kv_socket", "a decode-only engine restores no prefixes")
        need(not self.report_folder or pathlib.Path(self.report_folder).is_dir(), "report_folder", "there is no such folder")
        need(not self.report_folder or self.context_parallel_size == 1 or not self.rebalance_interval, "report_folder",
             "plans of experts need context_parallel_size = 1: the other devices of a rank are processes of the engine's own")
        need(50 < self.master_port < 65536, "master_port", "a port above 50: the engine listens 50 below it")
        need(self.yoco_truncation in ("off", "mask", "compact"), "yoco_truncation", "off, mask or compact")
        if self.yoco_truncation != "off":
            least = WINDOW + self.drafts + 1
            need(self.yoco_keep_tokens >= least, "yoco_keep_tokens", f"at least window + backtracking = {least}")
        if self.engine_type == "COMPLETION":
            need(self.context_parallel_size == 1, "context_parallel_size", "a decode-only engine has 1")
        ranks = self.ranks_here or self.data_parallel_size
        need(self.first_rank + ranks <= self.data_parallel_size, "first_rank", f"the group has {self.data_parallel_size} ranks")
        need(not self.devices or len(self.devices) == ranks * self.context_parallel_size, "devices",
             f"{ranks} ranks here need {ranks * self.context_parallel_size}")
        if self.max_num_batched_tokens and not self.chunked_prefill:
            need(self.max_num_batched_tokens >= self.max_model_len, "max_num_batched_tokens",
                 "without chunked_prefill at least max_model_len")

    # ------------------------------------------------------------ what the engine is given

    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + (self.ranks_here or self.data_parallel_size))

    def engine_args(self, rank: int) -> dict[str, Any]:
        """For EngineArgs. A preempted request is ended, not recomputed: a decode-only engine cannot, and the others would
        write tokens again that clients have."""
        return {
            "model": self.model, "served_model_name": self.served_model_name, "load_format": self.load_format,
            "max_model_len": self.max_model_len, "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens or None, "gpu_memory_utilization": self.memory_utilization,
            "chunked_prefill": self.chunked_prefill and self.engine_type != "COMPLETION",
            "data_parallel_size": self.data_parallel_size, "context_parallel_size": self.context_parallel_size,
            "expert_parallel_size": self.expert_parallel_size, "engine_rank": rank, "engine_group_rank": self.group,
            "stop_preempted_request": True, "disable_log_stats": False, "offline_inference": False,
        }

    def environment(self, rank: int) -> dict[str, str]:
        """All that this rank's process needs besides what it inherits."""
        here = rank - self.first_rank
        width = self.context_parallel_size
        devices = self.devices or list(range(len(self.ranks()) * width))
        mine = ",".join(str(d) for d in devices[here * width : (here + 1) * width])
        backtracking = self.drafts + 1
        out = {
            "DEEPINFER_ACCELERATOR": ACCELERATORS[self.accelerator],
            # Indexed by the engine on both kinds of device (facts, section 3.3).
            "CUDA_VISIBLE_DEVICES": mine,
            "MASTER_ADDR": self.master_addr, "MASTER_PORT": str(self.master_port),
            "DEEPINFER_GLOO_TIMEOUT": str(self.gloo_timeout_s),
            "DEEPINFER_USE_NEXTN_DECODE": str(self.drafts),
            "DEEPINFER_MAX_BACKTRACKING_TOKENS": str(backtracking),
            "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": self.yoco_truncation,
            "DEEPINFER_PREFILL_ATTEMPT_INTERVAL": str(self.prefill_interval),
            "DEEPINFER_PREFILL_ANY_ATTEMPT_INTERVAL": str(self.prefill_any_interval),
            "DEEPINFER_XGRAMMAR_TIMEOUT": str(self.grammar_timeout_s),
            "DEEPINFER_SO_BUILDER_CPUS": str(self.grammar_cpus),
            "DEEPINFER_LOGGING_INTERVAL_STEP": str(self.log_interval_steps),
            "DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS": str(self.extra_experts),
            "DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL": str(self.rebalance_interval),
        }
        if self.accelerator == "ascend950":
            out["ASCEND_RT_VISIBLE_DEVICES"] = mine
        if self.yoco_truncation != "off":
            out["DEEPINFER_YOCO_PREFILL_KEEP_TOKENS"] = str(self.yoco_keep_tokens)
        if self.store_extra_state and self.engine_type != "COMPLETION":
            out["DEEPINFER_PREFILL_STORE_EXTRA_STATE"] = "1"
        if self.deterministic:
            out["DEEPINFER_BATCH_INVARIANT"] = "1"
            out["DEEPINFER_ENABLE_MTP_VARLEN"] = "0"
        return {**out, **self.extra_environment}
