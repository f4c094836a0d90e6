// The bytes that the Python agent's codec is held against (tests/deepinfer/test_wire.py): one
// message of each kind, with values that differ from member to member. This test makes them and
// compares them with the committed file; when the format has changed on purpose it leaves the new
// file in the temporary folder and says so.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "base/hash.h"
#include "model/engine_wire.h"

namespace nereid::engine::deepinfer {
namespace {

namespace wire = model::wire;

constexpr const char* kFile = "tests/deepinfer/wire_vectors.txt";

Digest256 digest(std::uint8_t first) {
    Digest256 d{};
    for (std::size_t i = 0; i < d.size(); ++i) d[i] = static_cast<std::uint8_t>(first + i);
    return d;
}

model::BlockKey key(std::uint8_t first) {
    model::BlockKey k;
    for (std::size_t i = 0; i < k.bytes.size(); ++i)
        k.bytes[i] = static_cast<std::uint8_t>(first + i);
    return k;
}

model::EngineInfo info() {
    model::EngineInfo i;
    i.engine = "deepinfer";
    i.engine_version = "0.1.0";
    i.model_id = "V4.1-Flash \xc3\xa9";
    i.model_digest = digest(1);
    i.vocab_size = 129280;
    i.context_tokens = 1u << 20;
    i.eos_ids = {1, 7};
    i.layout = {"deepinfer/v4.1-fp4",
                128,
                114048,
                1415040,
                140,
                "yoco=compact",
                {{2, 0, 22784, "kv"}, {20, 68352, 45568, "kv"}}};
    i.roles = 3;
    i.grammars = 22;
    i.logprobs = true;
    i.max_top_logprobs = 1000;
    i.seeds = true;
    i.embedding_width = 5;
    i.images = true;
    i.speculation = true;
    i.replay = model::ReplayClass::kBounded;
    i.max_running = 256;
    i.max_queued = 512;
    i.kv_capacity_tokens = 123456;
    i.data_parallel_rank = 1;
    i.data_parallel_size = 2;
    return i;
}

model::AddRequest add() {
    model::AddRequest a;
    a.id = {0x0102030405060708};
    a.mode = model::AddMode::kPrefillOnly;
    a.prompt = {5, 129279, 0};
    a.sampling.temperature = 0.7;
    a.sampling.top_p = 0.95;
    a.sampling.top_k = 40;
    a.sampling.min_p = 0.05;
    a.sampling.frequency_penalty = -0.5;
    a.sampling.presence_penalty = 0.25;
    a.sampling.repetition_penalty = 1.1;
    a.sampling.seed = 0xfedcba9876543210;
    a.sampling.logit_bias = {{3, -1.5f}, {4, 2.0f}};
    a.max_tokens = 17;
    a.stop_ids = {11, 12};
    a.ignore_eos = true;
    a.logprobs = true;
    a.top_logprobs = 3;
    a.prompt_logprobs = true;
    a.grammar_kind = model::GrammarKind::kJsonSchema;
    a.grammar = R"({"type":"object"})";
    a.grammar_trigger = {99};
    a.kv_namespace.digest = digest(100);
    a.images = {{1, digest(7)}, {2, digest(8)}};
    a.image_bytes = {std::string("\x89PNG\0\xff", 6)};
    a.adapter = "lora";
    a.priority = 2;
    a.generated = 1;
    a.sample_position = 9;
    return a;
}

model::StepFrame frame() {
    model::StepFrame f;
    f.step = {77};
    f.started = {{{1}, 128}};
    f.tokens = {{{1}, 42, -0.5f, {{42, -0.5f}, {43, -1.25f}}}, {{2}, 7, 0.0f, {}}};
    f.embeddings = {{{3}, {0.5f, -0.25f}}};
    f.prompt_logprobs = {{{4}, {0.0f, -2.0f}}};
    f.kv_ready = {{{5}, 1, 2, 3, 4}};
    f.kv_failed = {{{6}, {Code::kNoSpace, "full", "kv"}}};
    f.drafts = {{{1}, 5, 3}};
    model::Finished done;
    done.id = {2};
    done.reason = model::EndReason::kFailed;
    done.prompt_tokens = 10;
    done.cached_tokens = 8;
    done.output_tokens = 3;
    done.queue_time = Duration(1);
    done.restore_time = Duration(2);
    done.prefill_time = Duration(3);
    done.decode_time = Duration(-4);
    done.error = Error{Code::kUnsupported, "no", "logit_bias"};
    f.finished = {done, {}};
    f.load = {1, 2, 3, 4, 5, 6, 7, 8, 9, Duration(10), Duration(11)};
    return f;
}

std::string vectors() {
    std::string out;
    const auto put = [&out](const char* name, const wire::Message& message) {
        std::string bytes;
        ASSERT_TRUE(wire::encode(message, bytes));
        out += fmt::format("{} {}\n", name, to_hex(as_bytes(bytes)));
    };
    put("hello", wire::Hello{1, 3, "gw"});
    put("welcome", wire::Welcome{1, info()});
    put("refuse", wire::Refuse{{Code::kUnsupported, "not this", "version"}});
    put("ping", wire::Ping{7});
    put("pong", wire::Pong{8});
    put("add", model::Command(add()));
    put("abort", model::Command(model::AbortRequest{{9}}));
    put("import", model::Command(model::ImportPrefix{{9}, 1, {key(1), key(30)}, 2, 3}));
    put("export", model::Command(model::ExportBlocks{{9}, 1, 2, 3, 4}));
    put("admit", model::Command(model::AdmitDecode{add(), 55, 6, 7}));
    put("pin", model::Command(model::Pin{{9}, Duration(30'000'000'000)}));
    put("release", model::Command(model::Release{{9}}));
    put("drain", model::Command(model::Drain{}));
    put("map", model::Command(model::MapRegion{"/dev/shm/nereid", 1u << 20}));
    put("step", frame());
    return out;
}

TEST(DeepInferWireVectors, TheCommittedBytesAreOurs) {
    const std::string now = vectors();
    const std::ifstream file(kFile);
    std::stringstream committed;
    committed << file.rdbuf();
    if (committed.str() == now) return;
    const std::string fresh = ::testing::TempDir() + "wire_vectors.txt";
    std::ofstream(fresh) << now;
    FAIL() << kFile << " is not what the codec writes. If the format was meant to change: cp "
           << fresh << " " << kFile;
}

}  // namespace
}  // namespace nereid::engine::deepinfer
