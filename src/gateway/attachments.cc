#include "gateway/attachments.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/utf8.h"
#include "dialect/document.h"
#include "gateway/files.h"
#include "gateway/remote_file.h"
#include "model/attachments.h"
#include "store/offload.h"

namespace nereid::gateway {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kPdfMark = "%PDF-";
constexpr std::size_t kPdfHead = 1024;  // readers look for it within that (ISO 32000, annex I)

std::unexpected<Error> invalid(std::string message) {
    return err(Code::kInvalidArgument, std::move(message));
}

// Anthropic's errors have no field for the place: it is in the text.
Error placed(Error error, const model::Request& request, const std::string& path) {
    error.param = path;
    if (request.endpoint == model::Endpoint::kMessages && !path.empty())
        error.message = path + ": " + error.message;
    return error;
}

// The bytes of an image or a document, wherever they are.
template <class Part>
io::Task<Result<void>> bring_bytes(Exchange& x, io::Network& network, Part& part,
                                   std::string_view noun) {
    if (!part.file_id.empty()) {
        CO_TRY(StoredFile file, co_await load_file(x, part.file_id));
        part.bytes = std::move(file.bytes);
        if constexpr (std::is_same_v<Part, model::DocumentPart>) {
            if (part.name.empty()) part.name = std::move(file.name);
        }
        part.file_id.clear();
    } else if (!part.url.empty()) {
        CO_TRY(RemoteFile file, co_await fetch_file(x, network, part.url, noun));
        part.bytes = std::move(file.bytes);
        part.media_type = std::move(file.media_type);
        part.url.clear();
    }
    co_return Result<void>();
}

bool is_text(std::string_view bytes) {
    return bytes.find('\0') == std::string_view::npos && is_valid_utf8(bytes);
}

// By what it is, whatever its sender calls it. A text that speaks of PDFs is none, unless it begins
// as one.
bool is_pdf(std::string_view bytes) {
    return bytes.starts_with(kPdfMark) ||
           (bytes.substr(0, kPdfHead).contains(kPdfMark) && !is_text(bytes));
}

std::string what(const model::DocumentPart& part) {
    return part.name.empty() ? "The file"
                             : fmt::format("The file '{}'", dialect::short_name(part.name));
}

// What is left of the limits of a request.
struct Room {
    std::size_t documents, bytes, text;
    Duration time;
};

// Runs `work` on the time of `room`.
template <class Room>
io::Task<Result<void>> timed(Exchange& x, Room& room, io::Task<Result<void>> work,
                             std::string_view noun) {
    if (room.time <= 0ms)
        co_return invalid(fmt::format("Fetching the {}s of the request takes too long.", noun));
    const TimePoint begin = x.loop().now();
    auto done = co_await std::move(work);
    room.time -= x.loop().now() - begin;
    co_return done;
}

// Whether a note may stand for what failed so: the same would come of it again.
bool is_lasting(const Error& error) {
    return error.code == Code::kInvalidArgument || error.code == Code::kNotFound ||
           error.code == Code::kUnsupported || error.code == Code::kTooLarge;
}

// The parts of a kind as limits are to meet them: what is required, then from the newest back.
template <class Kind>
std::vector<model::Part*> in_order_of_need(model::Request& request) {
    std::vector<model::Part*> required, others;
    for (model::Message& message : request.messages) {
        for (model::Part& part : message.parts) {
            const auto* found = std::get_if<Kind>(&part);
            if (found != nullptr) (found->required ? required : others).push_back(&part);
        }
    }
    required.insert(required.end(), others.rbegin(), others.rend());
    return required;
}

io::Task<Result<std::string>> read_document(Exchange& x, io::Network& network, PdfReader& pdf,
                                            model::DocumentPart& part, Room& room) {
    if (room.documents == 0) co_return invalid("There are too many documents in one request.");
    --room.documents;
    CO_TRY_VOID(co_await timed(x, room, bring_bytes(x, network, part, "file"), "document"));
    if (part.bytes.empty()) co_return invalid(what(part) + " is empty.");
    if (part.bytes.size() > room.bytes)
        co_return invalid("The documents of the request are too large together.");
    room.bytes -= part.bytes.size();
    if (is_pdf(part.bytes)) {
        Duration took{};
        auto text = co_await pdf.text(x.options().pdf_reader, x.record.key, part.bytes, took);
        room.time -= took;
        if (text.ok()) x.core().probe.document(Document::kPdf);
        if (!text.ok()) text.error().message = what(part) + text.error().message;
        co_return text;
    }
    std::string_view text = part.bytes;
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    if (is_text(text)) {
        x.core().probe.document(Document::kText);
        co_return std::string(text);
    }
    const std::string kind =
        part.media_type.empty() ? "" : fmt::format(" ({})", dialect::short_name(part.media_type));
    const char* hint =
        part.media_type.starts_with("image/") ? "; an image has a content part of its own" : "";
    co_return invalid(
        fmt::format("{} is neither UTF-8 text nor a PDF{}{}.", what(part), kind, hint));
}

// The text that takes the document's place.
io::Task<Result<std::string>> text_of(Exchange& x, io::Network& network, PdfReader& pdf,
                                      model::DocumentPart& part, Room& room) {
    CO_TRY(const std::string text, co_await read_document(x, network, pdf, part, room));
    if (text.size() > room.text)
        co_return invalid("The documents of the request have too much text.");
    room.text -= text.size();
    co_return dialect::document_text(part.name, part.context, text);
}

struct ImageRoom {
    std::size_t images, bytes;
    std::uint64_t pixels;
    Duration time;
};

io::Task<Result<void>> bring_image(Exchange& x, io::Network& network, model::ImagePart& image,
                                   ImageLimits limits, ImageRoom& room) {
    if (room.images == 0) co_return invalid("There are too many images in one request.");
    --room.images;
    CO_TRY_VOID(co_await timed(x, room, bring_bytes(x, network, image, "image"), "image"));
    if (image.bytes.size() > room.bytes)
        co_return invalid("The images of the request are too large together.");
    room.bytes -= image.bytes.size();
    limits.max_pixels = std::min(limits.max_pixels, room.pixels);
    // The request may be gone before its image is decoded: the bytes belong to the job meanwhile.
    const auto bytes = std::make_shared<std::string>(std::move(image.bytes));
    const auto decode = [bytes, limits] { return decode_image(*bytes, limits); };
    auto facts = x.core().helper == nullptr
                     ? decode()
                     : co_await store::offload(*x.core().helper, x.loop(), decode);
    if (!facts.ok()) co_return facts.error();
    image.bytes = std::move(*bytes);
    image.media_type = facts->media_type;
    image.width = facts->width;
    image.height = facts->height;
    room.pixels -= std::uint64_t{facts->width} * facts->height * facts->frames;
    co_return Result<void>();
}

}  // namespace

io::Task<Result<void>> bring_documents(Exchange& x, io::Network& network, PdfReader& pdf,
                                       model::Request& request, const AttachmentLimits& limits) {
    Room room{.documents = limits.max_documents,
              .bytes = limits.max_bytes,
              .text = limits.max_text,
              .time = limits.max_time};
    for (model::Part* part : in_order_of_need<model::DocumentPart>(request)) {
        auto& document = std::get<model::DocumentPart>(*part);
        auto text = co_await text_of(x, network, pdf, document, room);
        if (text.ok()) {
            *part = model::TextPart{*std::move(text)};
            continue;
        }
        x.core().probe.document(Document::kRefused);
        if (document.required || !is_lasting(text.error()))
            co_return placed(std::move(text.error()), request, document.path);
        *part = dialect::attachment_note(text.error());
    }
    co_return Result<void>();
}

io::Task<Result<void>> bring_images(Exchange& x, io::Network& network, model::Request& request,
                                    const AttachmentLimits& limits) {
    ImageRoom room{.images = limits.max_images,
                   .bytes = limits.max_bytes,
                   .pixels = limits.max_pixels,
                   .time = limits.max_time};
    for (model::Part* part : in_order_of_need<model::ImagePart>(request)) {
        auto& image = std::get<model::ImagePart>(*part);
        auto brought = co_await bring_image(x, network, image, limits.image, room);
        if (brought.ok()) continue;
        if (image.required || !is_lasting(brought.error()))
            co_return placed(std::move(brought.error()), request, image.path);
        *part = dialect::attachment_note(brought.error());
    }
    co_return Result<void>();
}

void note_images(model::Request& request) {
    for (model::Part* part : in_order_of_need<model::ImagePart>(request)) {
        if (!std::get<model::ImagePart>(*part).required)
            *part = dialect::attachment_note({Code::kUnsupported, "This model sees no images."});
    }
}

}  // namespace nereid::gateway
