#!/usr/bin/python3
"""Tests of tools/tidy: every rule is shown a violation that it must see, and the like that it must let pass."""

import importlib.machinery
import importlib.util
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("tidy", str(Path(__file__).resolve().parent / "tidy"))
spec = importlib.util.spec_from_loader("tidy", loader)
tidy = importlib.util.module_from_spec(spec)
loader.exec_module(tidy)

ROOMS = "base:\nio: base\nstore: base io\nmodel: base\ntext: base model\nengine: base io model text\nrouter: base model\napp: *\n"


class TidyTest(unittest.TestCase):
    def findings(self, files, rooms=ROOMS):
        """Rules found in a tree of `files` (name -> text), READMEs of rooms added where absent."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            tree = {"src/rooms.txt": rooms}
            for name in files:
                parts = name.split("/")
                if parts[0] == "src" and len(parts) > 2:
                    tree[f"src/{parts[1]}/README.md"] = "# A room\n"
            tree.update(files)
            for name, text in tree.items():
                if text is not None:
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    (root / name).write_text(text)
            self.last = tidy.Tidy(root).run()
            return sorted({f[2] for f in self.last.findings})

    def expect(self, rule, files, **more):
        self.assertEqual(self.findings(files, **more), [rule] if rule else [], self.last.findings)

    def code(self, rule, line, name="src/router/a.cc"):
        self.expect(rule, {name: line + "\n"})

    # --- rooms and includes

    def test_clean_tree(self):
        self.expect(None, {"src/base/a.h": "#pragma once\n", "src/router/a.cc": '#include "base/a.h"\n#include <vector>\n'})

    def test_rooms_cycle(self):
        self.expect("rooms", {}, rooms="base: io\nio: base\n")

    def test_rooms_self(self):
        self.expect("rooms", {}, rooms="base: base\n")

    def test_rooms_twice(self):
        self.expect("rooms", {}, rooms="base:\nbase:\n")

    def test_rooms_unreadable(self):
        self.expect("rooms", {}, rooms="base\n")

    def test_rooms_unlisted_folder(self):
        self.expect("rooms", {"src/attic/a.cc": "int a;\n"})

    def test_include_not_allowed(self):
        self.expect("include", {"src/io/a.h": "#pragma once\n", "src/router/a.cc": '#include "io/a.h"\n'})

    def test_include_star_allows_rooms_above(self):
        self.expect(None, {"src/io/a.h": "#pragma once\n", "src/app/a.cc": '#include "io/a.h"\n'})

    def test_include_star_is_not_inherited(self):
        self.expect("include", {"src/app/a.h": "#pragma once\n", "src/engine/a.cc": '#include "app/a.h"\n'})

    def test_include_in_a_test_counts(self):
        self.expect("include", {"src/io/a.h": "#pragma once\n", "src/router/a_test.cc": '#include "io/a.h"\n'})

    def test_include_missing_file(self):
        self.code("include", '#include "base/none.h"')

    def test_include_relative(self):
        self.expect("include", {"src/router/b.h": "#pragma once\n", "src/router/a.cc": '#include "b.h"\n'})

    def test_include_ours_in_angles(self):
        self.expect("include", {"src/base/a.h": "#pragma once\n", "src/router/a.cc": "#include <base/a.h>\n"})

    # --- headers of outside libraries

    def test_asio(self):
        for header in ("boost/asio.hpp", "boost/container/small_vector.hpp", "grpcpp/grpcpp.h", "google/protobuf/message.h", "liburing.h"):
            self.code("asio", f"#include <{header}>", "src/engine/a.cc")
            self.code(None, f"#include <{header}>", "src/io/a.cc")

    def test_driver(self):
        for header in ("sqlite3.h", "libpq-fe.h", "hiredis/hiredis.h", "etcd/Client.hpp"):
            self.code("driver", f"#include <{header}>", "src/io/a.cc")
            self.code(None, f"#include <{header}>", "src/store/a.cc")

    def test_rust(self):
        for header in ("nereid_guidance.h", "nereid_recipe.h"):
            self.code("rust", f"#include <{header}>", "src/engine/openai/a.cc")
            self.code(None, f"#include <{header}>", "src/engine/llama/a.cc")
            self.code(None, f"#include <{header}>", "src/text/recipe/a.cc")

    def test_llama(self):
        for header in ("llama.h", "ggml.h", "ggml-cpu.h", "gguf.h", "chat.h", "jinja/parser.h"):
            self.code("llama", f"#include <{header}>", "src/engine/openai/a.cc")
            self.code("llama", f"#include <{header}>", "src/text/a.cc")
            self.code(None, f"#include <{header}>", "src/engine/llama/a.cc")
            self.code(None, f"#include <{header}>", "src/text/gguf/a.cc")

    # --- calls

    def test_clock(self):
        for line in (
            "auto t = std::chrono::steady_clock::now();",
            "auto t = system_clock :: now();",
            "gettimeofday(&tv, nullptr);",
            "clock_gettime(CLOCK_MONOTONIC, &ts);",
            "auto t = time(nullptr);",
            "auto t = std::time(&x);",
        ):
            self.code("clock", line)
            self.code(None, line, "src/io/a.cc")
        for line in ("clock.now();", "std::chrono::steady_clock::time_point t;", "auto t = request.time();", "int restart_time(int);"):
            self.code(None, line)

    def test_sleep(self):
        for line in ("std::this_thread::sleep_for(1s);", "usleep(3);", "::sleep(1);", "nanosleep(&a, &b);"):
            self.code("sleep", line)
            self.code("sleep", line, "src/io/a_test.cc")
            self.code(None, line, "src/io/a.cc")
        self.code(None, "co_await loop.sleep(1); loop->sleep_for(2s);")

    def test_random(self):
        for line in (
            "int x = rand();",
            "srand(1);",
            "std::random_device d;",
            "std::uniform_int_distribution<int> d(0, 3);",
            "std::mt19937 g;",
            "std::shuffle(a, b, g);",
        ):
            self.code("random", line)
            self.code("random", line, "src/io/a.cc")
        self.code(None, "rng.shuffle(a); int operand(int); x.rand();")

    def test_env(self):
        self.code("env", 'auto* p = std::getenv("HOME");')
        self.code(None, 'auto* p = std::getenv("HOME");', "src/app/a.cc")

    def test_process(self):
        for line in ("fork();", "return fork();", "if (auto p = ::fork(); !p) f();", "execvp(a, b);", 'system("ls");', 'auto* f = popen("ls", "r");', "posix_spawn(a);"):
            self.code("process", line)
            self.code(None, line, "src/io/a.cc")
        self.code(None, "registry.system(3); workfork(); Prng fork(); Prng Prng::fork() {} rng.fork(); execute(x);")

    def test_thread(self):
        for line in ("std::thread t(f);", "std::jthread t(f);", "auto r = std::async(f);", "pthread_create(&a, 0, f, 0);"):
            self.code("thread", line)
            self.code(None, line, "src/engine/llama/a.cc")
        self.code(None, "int n = std::thread::hardware_concurrency();")

    def test_comments_and_strings_are_not_code(self):
        self.code(None, '// rand() and std::thread\n/* fork();\n usleep(1); */ auto s = "system(x)"; auto r = R"(getenv("a"))"; char c = \'"\';')
        self.code("random", "int a = 1'000'000; int b = rand();")

    # --- the rest

    def test_readme(self):
        self.expect("readme", {"src/base/a.cc": "int a;\n", "src/base/README.md": None})

    def test_header(self):
        self.expect("header", {"src/base/a.h": "int a();\n"})

    def test_leftover(self):
        for word in ("TO" "DO", "FIX" "ME", "XX" "X"):
            self.code("leftover", f"int a;  // {word}: later")
            self.expect("leftover", {"tools/a.py": f"# {word}\n"})
        self.code(None, "int a;  // mastodon")

    def test_folder(self):
        self.expect("folder", {"src/base/utils/a.cc": "int a;\n"})
        self.expect("folder", {"tests/helpers/a.py": "\n"})

    def test_extension(self):
        self.expect("extension", {"src/base/a.cpp": "int a;\n"})
        self.expect("extension", {"src/base/a.c": "int a;\n"})
        self.expect("extension", {"src/base/a.hpp": "int a;\n"})

    def test_path(self):
        self.expect("path", {"docs/a.md": "see /" "root/.cache\n"})
        self.expect(None, {"docs/a.md": "see $HOME/.cache and https://x.example/work/a and ./work/a\n"})

    def test_link(self):
        self.expect("link", {"docs/a.md": "see [b](b.md)\n"})
        self.expect(None, {"docs/a.md": "see [b](b.md#part), [c](https://x.example), [d](#a), `[e](e.md)`\n", "docs/b.md": "# B\n"})

    # --- excuses and notes

    def test_excuse(self):
        self.code(None, "int x = rand();  // tidy: allow random because this is a test of the rule")
        self.code(None, "// tidy: allow random because this is a test of the rule\nint x = rand();")

    def test_excuse_other_rule(self):
        self.assertEqual(self.findings({"src/router/a.cc": "rand();  // tidy: allow clock because no\n"}), ["excuse", "random"])

    def test_excuse_without_reason(self):
        self.assertEqual(self.findings({"src/router/a.cc": "rand();  // tidy: allow random\n"}), ["excuse", "random"])

    def test_excuse_unknown_rule(self):
        self.code("excuse", "int a;  // tidy: allow nonsense because why not")

    def test_excuse_for_nothing(self):
        self.code("excuse", "int a;  // tidy: allow random because it was once needed")

    def test_notes_do_not_fail(self):
        body = "void f() {\n" + "    g();\n" * 900 + "}\n"
        self.expect(None, {"src/base/a.cc": body})
        self.assertEqual(len(self.last.notes), 2)

    def test_every_rule_is_tested(self):
        text = Path(__file__).read_text()
        for rule in tidy.RULES:
            self.assertRegex(text, rf"(expect|code|assertEqual)\([^\n]*\"{rule}\"", f"no planted violation for rule {rule}")


if __name__ == "__main__":
    unittest.main()
