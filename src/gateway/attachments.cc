#include "gateway/attachments.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/utf8.h"
#include "gateway/files.h"
#include "gateway/remote_file.h"
#include "model/attachments.h"
#include "store/offload.h"

namespace nereid::gateway {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::size_t kPdfHead = 1024;  // readers look for %PDF- within it (ISO 32000, annex I)
constexpr std::size_t kLongestName = 128;

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

bool is_pdf(const model::DocumentPart& part) {
    return !part.media_type.starts_with("text/") &&
           std::string_view(part.bytes).substr(0, kPdfHead).contains("%PDF-");
}

std::string what(const model::DocumentPart& part) {
    if (!part.name.empty()) return fmt::format("The file '{}'", part.name.substr(0, kLongestName));
    return "The file";
}

Error unreadable(const model::DocumentPart& part) {
    std::string kind = part.media_type.empty()
                           ? std::string()
                           : fmt::format(" ({})", part.media_type.substr(0, kLongestName));
    if (part.media_type.starts_with("image/")) kind += "; an image has a content part of its own";
    return {Code::kInvalidArgument,
            fmt::format("{} is neither UTF-8 text nor a PDF{}.", what(part), kind)};
}

io::Task<Result<std::string>> read_document(Exchange& x, io::Network& network, PdfReader& pdf,
                                            model::DocumentPart& part) {
    CO_TRY_VOID(co_await bring_bytes(x, network, part, "file"));
    if (is_pdf(part)) {
        auto text = co_await pdf.text(x.options().pdf_reader, x.record.key, part.bytes);
        if (!text.ok()) text.error().message = what(part) + text.error().message;
        if (text.ok()) x.core().probe.document(Document::kPdf);
        co_return text;
    }
    std::string_view text = part.bytes;
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    if (!is_text(text)) co_return unreadable(part);
    x.core().probe.document(Document::kText);
    co_return std::string(text);
}

// A name stands in a tag: nothing of it may end that.
std::string in_tag(std::string_view name) {
    std::string out(name.substr(0, complete_utf8_prefix(name.substr(0, kLongestName))));
    std::ranges::replace_if(
        out, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '"' || c == '>'; },
        ' ');
    return out;
}

}  // namespace

std::string document_text(const model::DocumentPart& part, std::string_view text) {
    std::string out = "<document";
    if (!part.name.empty()) out += fmt::format(" name=\"{}\"", in_tag(part.name));
    out += ">\n";
    if (!part.context.empty()) out.append(part.context).append("\n\n");
    out += text;
    if (!out.ends_with('\n')) out += '\n';
    out += "</document>\n";
    return out;
}

io::Task<Result<void>> bring_documents(Exchange& x, io::Network& network, PdfReader& pdf,
                                       model::Request& request, const DocumentLimits& limits) {
    const auto count = model::documents_of(std::as_const(request)).size();
    if (count == 0) co_return Result<void>();
    if (count > limits.max_documents) {
        co_return Error{Code::kInvalidArgument,
                        fmt::format("{} documents in one request are more than {}.", count,
                                    limits.max_documents)};
    }
    std::size_t room = limits.max_text;
    for (model::Message& message : request.messages) {
        for (model::Part& part : message.parts) {
            auto* document = std::get_if<model::DocumentPart>(&part);
            if (document == nullptr) continue;
            auto text = co_await read_document(x, network, pdf, *document);
            if (!text.ok()) x.core().probe.document(Document::kRefused);
            if (!text.ok() && document->required)
                co_return placed(std::move(text.error()), request, document->path);
            if (!text.ok()) {
                part = model::TextPart{
                    document_text(*document, fmt::format("[{}]", text.error().message))};
                continue;
            }
            if (text->size() > room) {
                co_return placed(
                    {Code::kInvalidArgument,
                     fmt::format("The text of the documents is over {} bytes.", limits.max_text)},
                    request, document->path);
            }
            room -= text->size();
            part = model::TextPart{document_text(*document, *text)};
        }
    }
    co_return Result<void>();
}

io::Task<Result<void>> bring_images(Exchange& x, io::Network& network, model::Request& request,
                                    const ImageLimits& limits) {
    const std::vector<model::ImagePart*> images = model::images_of(request);
    if (images.size() > limits.max_images) {
        co_return Error{Code::kInvalidArgument,
                        fmt::format("{} images in one request are more than {}.", images.size(),
                                    limits.max_images),
                        images[limits.max_images]->path};
    }
    for (model::ImagePart* image : images) {
        auto brought = co_await bring_bytes(x, network, *image, "image");
        if (!brought.ok()) co_return placed(std::move(brought.error()), request, image->path);
    }
    std::uint64_t left = limits.max_request;
    for (model::ImagePart* image : images) {
        ImageLimits now = limits;
        now.max_pixels = std::min(limits.max_pixels, left);
        // The request may be gone before its image is decoded: the bytes belong to the job
        // meanwhile.
        const auto bytes = std::make_shared<std::string>(std::move(image->bytes));
        const auto decode = [bytes, now] { return decode_image(*bytes, now); };
        auto facts = x.core().helper == nullptr
                         ? decode()
                         : co_await store::offload(*x.core().helper, x.loop(), decode);
        if (!facts.ok()) co_return placed(std::move(facts.error()), request, image->path);
        image->bytes = std::move(*bytes);
        image->media_type = facts->media_type;
        image->width = facts->width;
        image->height = facts->height;
        left -= std::uint64_t{facts->width} * facts->height * facts->frames;
    }
    co_return Result<void>();
}

}  // namespace nereid::gateway
