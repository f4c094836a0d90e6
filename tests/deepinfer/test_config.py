"""The group's configuration: what it refuses before an engine is started, and the environment of a rank."""

from __future__ import annotations

import pathlib

import pytest

from nereid_deepinfer.config import Config, ConfigError

MODEL = str(pathlib.Path(__file__).with_name("cpu") / "model")
DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy/deepinfer"


@pytest.mark.parametrize(("values", "key"), [
    ({"modle": "x"}, "modle"), ({"max_num_seqs": "many"}, "max_num_seqs"), ({"chunked_prefill": 1}, "chunked_prefill"),
    ({"engine_type": "BOTH"}, "engine_type"), ({"accelerator": "h100"}, "accelerator"), ({"yoco_keep_tokens": 133}, "yoco_keep_tokens"),
    ({"engine_type": "COMPLETION", "context_parallel_size": 2}, "context_parallel_size"), ({"devices": [0, 1]}, "devices"),
    ({"data_parallel_size": 2, "first_rank": 1, "ranks_here": 2}, "first_rank"), ({"memory_utilization": 1.5}, "memory_utilization"),
    ({"chunked_prefill": False, "max_num_batched_tokens": 4096}, "max_num_batched_tokens"), ({"model": "/nowhere"}, "model"),
    ({"master_port": 40}, "master_port"), ({"extra_environment": {"A": 1}}, "extra_environment"), ({"data_parallel_size": 0}, "data_parallel_size"),
])
def test_faults_name_the_key(values: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Config.of({"model": MODEL, **values})


def test_environment_of_a_rank() -> None:
    config = Config.of({"model": MODEL, "data_parallel_size": 4, "first_rank": 2, "ranks_here": 2, "context_parallel_size": 2,
                        "deterministic": True, "drafts": 3, "extra_environment": {"DEEPINFER_LOGGING_INTERVAL_STEP": "7"}})
    env = config.environment(3)
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3" and env["DEEPINFER_ACCELERATOR"] == "nvidia"
    assert env["DEEPINFER_USE_NEXTN_DECODE"] == "3" and env["DEEPINFER_MAX_BACKTRACKING_TOKENS"] == "4"
    assert env["DEEPINFER_BATCH_INVARIANT"] == "1" and env["DEEPINFER_ENABLE_MTP_VARLEN"] == "0"
    assert env["DEEPINFER_LOGGING_INTERVAL_STEP"] == "7"
    assert config.engine_args(3)["engine_rank"] == 3 and config.engine_args(3)["stop_preempted_request"] is True
    ascend = Config.of({"model": MODEL, "accelerator": "ascend950"}).environment(0)
    assert ascend["DEEPINFER_ACCELERATOR"] == "ascend" and ascend["ASCEND_RT_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.toml")), ids=lambda f: f.name)
def test_files_in_deploy_are_valid(file: pathlib.Path) -> None:
    import tomllib

    config = Config.of({**tomllib.loads(file.read_text()), "model": MODEL})
    assert all(config.environment(rank) for rank in config.ranks())
