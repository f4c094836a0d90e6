#include <fmt/format.h>

#include "gateway/gateway.h"

namespace nereid::gateway {

bool is_loopback(std::string_view host) {
    return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

void GatewayOptions::bind(io::ConfigBinder& b) {
    b.knob(
        "gateway.host", host,
        {.doc = "Address to listen on. Beyond loopback it needs api_keys or allow_open_network."});
    b.knob("gateway.port", port,
           {.min = 0, .max = 65535, .doc = "Port to listen on; 0 lets the system choose."});
    b.knob("gateway.api_keys", api_keys,
           {.reload = true,
            .doc = "File of keys, one `name:sha256-hex[:max_concurrency]` per line (`nereid keys "
                   "new`). Empty: no authentication."});
    b.knob("gateway.allow_open_network", allow_open_network,
           {.doc = "Listen beyond loopback although there are no keys: anybody who reaches the "
                   "port may use the model."});
    b.knob("gateway.tls_cert", tls_cert,
           {.doc = "PEM file of the certificate chain; with tls_key, the port speaks TLS. SIGHUP "
                   "reads both files again."});
    b.knob("gateway.tls_key", tls_key, {.doc = "PEM file of the certificate's private key."});
    b.knob("gateway.queue_max", queue_max,
           {.unit = "requests",
            .min = 1,
            .max = 1e6,
            .reload = true,
            .doc = "Requests admitted and not ended; more are answered 503 with retry-after."});
    b.knob("gateway.retry_after", retry_after,
           {.reload = true, .doc = "When clients that are turned away are told to come back."});
    b.knob("gateway.keepalive", keepalive,
           {.reload = true,
            .doc = "Silence in a stream after which a comment is sent, so that proxies keep it."});
    b.knob("gateway.drain_timeout", drain_timeout,
           {.reload = true, .doc = "How long running requests may take to end at shutdown."});
    b.knob("gateway.upstream_timeout", upstream_timeout,
           {.doc = "How long a text backend may be silent."});
    b.knob("gateway.max_body", max_body, {.doc = "Largest request body; above it 413."});
    b.knob("gateway.max_header", max_header, {.doc = "Largest request head; above it 431."});
    b.knob("gateway.strict_fields", strict_fields,
           {.reload = true, .doc = "Refuse unknown top-level fields instead of logging them."});
    b.knob("gateway.max_n", max_n,
           {.unit = "choices",
            .min = 1,
            .max = 128,
            .reload = true,
            .doc = "Largest `n` of a request."});
    b.knob(
        "gateway.state", state,
        {.doc = "Where responses, conversations, files and batches are kept: \"memory\", an SQLite "
                "file, or postgres://... (the password in PGPASSWORD)."});
    b.knob("gateway.state_ttl", state_ttl,
           {.min = 0,
            .reload = true,
            .doc = "How long responses, conversations, files and batches are kept; 0: for ever."});
    b.knob("gateway.job_lease", job_lease,
           {.min = 1,
            .reload = true,
            .doc = "Several gateways on one database: background responses and batches of one that "
                   "has been silent for this long are taken over by another."});
    b.knob("gateway.file_urls", file_urls,
           {.choices = {"fetch", "refuse"},
            .reload = true,
            .doc = "Images and documents that requests name by URL: fetched (from public "
                   "addresses), or refused."});
    b.knob("gateway.file_private", file_private,
           {.reload = true,
            .doc = "Fetch them from private addresses too: callers can then reach what this "
                   "machine can."});
    b.knob("gateway.pass_priority", pass_priority,
           {.reload = true,
            .doc = "Pass `priority` of a request on to an OpenAI-compatible server: its caller can "
                   "then go before all others."});
    b.knob("gateway.pdf_reader", pdf_reader,
           {.reload = true,
            .doc = "Program that turns PDFs in requests into text, called as poppler's pdftotext "
                   "is (a wrapper may confine it further). Empty: PDFs are refused."});
    b.knob("gateway.access_log", access_log,
           {.doc = "Where the line per request goes: \"stderr\", \"off\", or a file."});
}

Result<void> GatewayOptions::validate() const {
    if (tls_cert.empty() != tls_key.empty()) {
        return err(Code::kConfig,
                   "gateway.tls_cert and gateway.tls_key belong together: one is set, the other is "
                   "not. Mend: set both or none.");
    }
    if (!is_loopback(host) && api_keys.empty() && !allow_open_network) {
        return err(Code::kConfig,
                   fmt::format("gateway.host = \"{}\" is reachable from other machines, and there "
                               "are no API keys. Mend: name a key file with "
                               "--api-keys FILE (`nereid keys new` makes keys), or say "
                               "--allow-open-network if everybody may use it.",
                               host));
    }
    if (keepalive < 1ms)
        return err(Code::kConfig,
                   "gateway.keepalive must be at least 1ms. Mend: 10s is a good value.");
    if (retry_after < 0ms)
        return err(Code::kConfig,
                   "gateway.retry_after must not be negative. Mend: 1s is a good value.");
    return {};
}

}  // namespace nereid::gateway
