// Brings what a request carries beside its text: images and documents, from the request itself,
// from stored files, from URLs. Images are decoded (ADR 0013), documents become text (ADR 0015),
// before anything else is done with the request.
#pragma once

#include <cstddef>

#include "gateway/exchange.h"
#include "gateway/image_decode.h"
#include "gateway/pdf_reader.h"
#include "io/stream.h"
#include "model/request.h"

namespace nereid::gateway {

// Decodes every image, off the loop where there is a helper, one at a time; sets media type and
// size of each part. The error names the image as the caller wrote it.
io::Task<Result<void>> bring_images(Exchange& x, io::Network& network, model::Request& request,
                                    const ImageLimits& limits = {});

struct DocumentLimits {
    std::size_t max_documents = 64;    // of a request
    std::size_t max_text = 16u << 20;  // bytes, of all documents of a request
};

// Puts the text of each document in its place: UTF-8 text as it is, a PDF through `pdf`. One that
// cannot be read is kInvalidArgument (or kNotFound, kUnsupported) naming it as the caller wrote it,
// or a note where it is not required. Requests without documents pay a walk over their parts.
io::Task<Result<void>> bring_documents(Exchange& x, io::Network& network, PdfReader& pdf,
                                       model::Request& request, const DocumentLimits& limits = {});

// `text` as the model sees it.
std::string document_text(const model::DocumentPart& part, std::string_view text);

}  // namespace nereid::gateway
