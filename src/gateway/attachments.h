// Brings what a request carries beside its text: images and documents, from the request itself,
// from stored files, from URLs. Images are decoded (ADR 0013), documents become text (ADR 0015),
// before anything else is done with the request. What cannot be shown to the model is refused,
// naming it as the caller wrote it; where it is not `required` a note takes its place, unless
// trouble of ours is the reason, which may pass. Limits are for what is required first, then for
// the newest.
#pragma once

#include <cstddef>

#include "gateway/exchange.h"
#include "gateway/image_decode.h"
#include "gateway/pdf_reader.h"
#include "io/stream.h"
#include "model/request.h"

namespace nereid::gateway {

// Of a request.
struct AttachmentLimits {
    ImageLimits image;                      // of each
    std::uint64_t max_pixels = 80'000'000;  // of all images
    std::size_t max_images = 64;
    std::size_t max_documents = 64;
    std::size_t max_bytes = 64u << 20;  // of all images, and of all documents
    std::size_t max_text = 16u << 20;   // bytes, of all documents
    // Of fetching and reading all documents, and of fetching all images; not of waiting for a turn.
    Duration max_time = std::chrono::seconds(60);
};

// Decodes every image, off the loop where there is a helper, one at a time; sets media type and
// size of each part.
io::Task<Result<void>> bring_images(Exchange& x, io::Network& network, model::Request& request,
                                    const AttachmentLimits& limits = {});

// For a model that sees none: notes in the place of those that are not required.
void note_images(model::Request& request);

// Puts the text of each document in its place: UTF-8 text as it is, a PDF through `pdf`.
// kInvalidArgument, kNotFound, kUnsupported, kOverloaded. Requests without documents pay a walk
// over their parts.
io::Task<Result<void>> bring_documents(Exchange& x, io::Network& network, PdfReader& pdf,
                                       model::Request& request,
                                       const AttachmentLimits& limits = {});

}  // namespace nereid::gateway
