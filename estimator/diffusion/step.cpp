#include "estimator/diffusion/step.h"

#include "estimator/diffusion/networks.h"

namespace spillway::estimator {
namespace {

Grid latent_grid(const TrainingRun& run, double samples) {
  const Pipeline& pipeline = *run.model.pipeline;
  const double factor = pipeline.coder ? static_cast<double>(pipeline.coder->factor()) : 8;
  return {samples, static_cast<double>(run.imaging.height) / factor,
          static_cast<double>(run.imaging.width) / factor};
}

double whole_element(const TrainingRun& run) {
  return run.training.precision == Precision::kFp32 ? 4 : 2;
}

double coder_element(const TrainingRun& run) {
  const ImageCoder& coder = *run.model.pipeline->coder;
  const bool wide = run.imaging.generates
                        ? coder.decodes_in_fp32 && run.training.precision == Precision::kFp16
                        : coder.trains_in_fp32;
  return wide ? 4 : whole_element(run);
}

double encoder_bytes(const TrainingRun& run, const TextEncoder& encoder) {
  const double wider = run.training.precision == Precision::kFp16 ? 2 : 0;
  return whole_element(run) * static_cast<double>(total_parameters(encoder.model)) +
         wider * static_cast<double>(encoder.fp32_elements);
}

ModuleSettings frozen_settings(double element) {
  ModuleSettings out;
  out.element = element;
  return out;
}

ModuleSettings denoiser_settings(const TrainingRun& run) {
  const Training& training = run.training;
  ModuleSettings out;
  out.element = training.autocast ? 4 : whole_element(run);
  out.trained = !training.adapter.on();
  out.recompute = training.recompute == Recompute::kFull;
  // The scripts train adapters under autocast too.
  out.autocast = training.autocast || (training.adapter.on() && training.precision != Precision::kFp32);
  out.adapter = training.adapter.on() ? &training.adapter : nullptr;
  return out;
}

// One prompt at a time goes through an encoder.
PlayedStep play_encoder(const TrainingRun& run, const TextEncoder& encoder) {
  TrainingRun alone;
  alone.framework = Framework::kTransformers;
  alone.model = encoder.model;
  alone.code = encoder.code;
  alone.training.precision = run.training.precision;
  alone.training.adapter = frozen_model();
  for (Tower& tower : alone.model.towers) tower.sequence = encoder.tokens;
  return play_step(alone, false);
}

Tensor text_states(Tape& tape, const TrainingRun& run, double samples, double element) {
  const Pipeline& pipeline = *run.model.pipeline;
  return tape.make(samples * static_cast<double>(pipeline.text_tokens) * text_width(pipeline), element);
}

GenerationPhase denoising(const TrainingRun& run) {
  const Pipeline& pipeline = *run.model.pipeline;
  const double element = whole_element(run), images = static_cast<double>(run.training.micro_batch);
  const double samples = run.imaging.guided ? 2 * images : images;
  GenerationPhase out;
  out.name = "denoising";
  out.part_bytes = element * static_cast<double>(denoiser_parameters(pipeline)) + denoiser_buffer_bytes(run);
  Tape tape;
  {
    Modules modules(tape, frozen_settings(element));
    DenoiserInput input;
    input.latents = latent_grid(run, samples);
    const double places = latent_grid(run, images).all();
    const Tensor latents = tape.make(places * latent_channels(pipeline), element);
    input.noisy = tape.make(input.latents.all() * latent_channels(pipeline), element);
    input.text = text_states(tape, run, samples, element);
    input.text_tokens = static_cast<double>(pipeline.text_tokens);
    call_denoiser(modules, pipeline, input)->forward();
  }
  out.peak_bytes = tape.peak_bytes();
  out.at_peak = tape.at_peak();
  return out;
}

GenerationPhase decoding(const TrainingRun& run) {
  const ImageCoder& coder = *run.model.pipeline->coder;
  const double element = coder_element(run);
  const double images = run.imaging.sliced ? 1 : static_cast<double>(run.training.micro_batch);
  const auto parameters = static_cast<double>(coder_parameters(coder));
  GenerationPhase out;
  out.name = "decoding";
  out.part_bytes = whole_element(run) * parameters;
  out.more_bytes = element * parameters - out.part_bytes;
  Tape tape;
  {
    Modules modules(tape, frozen_settings(element));
    const Grid grid = latent_grid(run, images);
    const Tensor latents = tape.make(grid.all() * static_cast<double>(coder.latent_channels), element);
    // Images that are decoded one after the other wait for the last.
    const double rest = static_cast<double>(run.training.micro_batch) - images;
    const Tensor done = tape.make(rest * static_cast<double>(coder.in_channels * run.imaging.height) *
                                      static_cast<double>(run.imaging.width),
                                  element);
    decode_images(modules, coder, latents, grid);
  }
  out.peak_bytes = tape.peak_bytes();
  out.at_peak = tape.at_peak();
  return out;
}

}  // namespace

double denoiser_buffer_bytes(const TrainingRun& run) {
  const auto* transformer = std::get_if<ImageTransformer>(&run.model.pipeline->denoiser);
  if (transformer == nullptr) return 0;
  const double element = run.training.autocast ? 4 : whole_element(run);
  return element * static_cast<double>(transformer->position_side * transformer->position_side *
                                       transformer->heads * transformer->head_dim);
}

FrozenParts frozen_parts(const TrainingRun& run) {
  const Pipeline& pipeline = *run.model.pipeline;
  FrozenParts out;
  if (pipeline.coder) out.coder = coder_element(run) * static_cast<double>(coder_parameters(*pipeline.coder));
  for (const TextEncoder& encoder : pipeline.encoders) out.encoders += encoder_bytes(run, encoder);
  return out;
}

std::vector<GenerationPhase> play_generation(const TrainingRun& run) {
  std::vector<GenerationPhase> out;
  for (const TextEncoder& encoder : run.model.pipeline->encoders) {
    GenerationPhase phase;
    phase.name = "text encoding";
    phase.part_bytes = encoder_bytes(run, encoder);
    // What is made of 77 tokens by an encoder whose code is not known (CLIP's) is little.
    if (encoder.code.known && can_play(encoder.model, encoder.code)) {
      const PlayedStep played = play_encoder(run, encoder);
      phase.peak_bytes = played.peak_bytes;
      phase.at_peak = played.at_peak;
    }
    out.push_back(phase);
  }
  out.push_back(denoising(run));
  if (run.model.pipeline->coder) out.push_back(decoding(run));
  return out;
}

PlayedStep play_denoising_step(const TrainingRun& run, bool keeps_gradients) {
  const Pipeline& pipeline = *run.model.pipeline;
  const double element = whole_element(run), samples = static_cast<double>(run.training.micro_batch);
  Tape tape;
  tape.keeps_gradients = keeps_gradients;
  double forward = 0;
  {
    const Grid grid = latent_grid(run, samples);
    const double elements = grid.all() * latent_channels(pipeline);
    Tensor pixels;
    if (run.imaging.encodes && pipeline.coder) {
      tape.set_purpose(Purpose::kImageCoder);
      const Grid of_pixels = {samples, static_cast<double>(run.imaging.height),
                              static_cast<double>(run.imaging.width)};
      pixels = tape.make(of_pixels.all() * static_cast<double>(pipeline.coder->in_channels), 4);
      Modules coder(tape, frozen_settings(coder_element(run)));
      const Tensor cast = coder.op().cast(pixels, coder_element(run));
      encode_images(coder, *pipeline.coder, cast, of_pixels);
    }
    tape.set_purpose(Purpose::kEmbeddings);
    const Tensor latents = tape.make(elements, element), noise = tape.make(elements, element);
    Modules modules(tape, denoiser_settings(run));
    DenoiserInput input;
    input.latents = grid;
    input.noisy = tape.make(elements, element);
    input.text = text_states(tape, run, samples, element);
    input.text_tokens = static_cast<double>(pipeline.text_tokens);
    const std::unique_ptr<DenoiserCall> call = call_denoiser(modules, pipeline, input);
    const Tensor predicted = call->forward();
    tape.set_purpose(Purpose::kLoss);
    const Operators& op = modules.op();
    const Tensor wide = op.cast(predicted, 4), target = op.cast(noise, 4);
    const Tensor loss = op.squared_error(wide);
    tape.end_forward(!modules.settings().recompute);
    forward = tape.live_bytes();
    tape.backward(loss);
  }
  PlayedStep out = played_of(tape);
  out.forward_bytes = forward;
  return out;
}

}  // namespace spillway::estimator
