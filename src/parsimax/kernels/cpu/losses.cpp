// The losses of rows, against class indices and against target probabilities.
#include "run.h"

using namespace parsimax;

static void set_smoothing(LossArgs& args, double smoothing, const std::optional<Tensor>& weight, Tensor& hold) {
  args.smoothing = smoothing;
  args.weight = nullptr;
  args.weight_sum = double(args.n);
  if (!weight.has_value()) return;
  STD_TORCH_CHECK(weight->scalar_type() == ScalarType::Double && weight->numel() == args.n,
                  "parsimax: the loss needs one float64 weight per class");
  hold = packed(*weight);
  args.weight = (const double*)hold.const_data_ptr();
  args.weight_sum = 0;
  for (int64_t k = 0; k < args.n; k++) args.weight_sum += args.weight[k];
}
// The four tensors of state: one LossRow per row, and the support of each row, if it fits into `cap`. `args` has the
// target.
using LossState = std::tuple<Tensor, Tensor, Tensor, Tensor>;
static LossState losses(const Work (&work)[4], const Tensor& x, LossArgs args, const std::optional<Tensor>& alpha,
                        double alpha_value) {
  const int t = type_of(x);
  const Rows r = rows_of(x);
  const ScalarType out = t == 1 ? ScalarType::Double : ScalarType::Float;
  const int64_t cap = std::min(r.n, std::max<int64_t>(64, r.n / 64));
  Tensor loss = one_per_row(x, r.rows, true, out), hold = x;
  Tensor rows = torch::stable::new_empty(x, {r.rows, int64_t(sizeof(LossRow) / 8)}, ScalarType::Double);
  Tensor index = torch::stable::new_empty(x, {r.rows, cap}, ScalarType::Int),
         value = torch::stable::new_empty(x, {r.rows, cap}, out);
  args.x = x.const_data_ptr();
  args.alpha = param(alpha, alpha_value, r.rows, hold);
  args.cap = cap;
  args.loss = loss.mutable_data_ptr();
  args.rows = (LossRow*)rows.mutable_data_ptr();
  args.index = (int32_t*)index.mutable_data_ptr();
  args.value = value.mutable_data_ptr();
  run(work[t], &args, r);
  return {loss, rows, index, value};
}
static std::tuple<Tensor, Tensor> loss_gradients(const Work (&work)[4], const Tensor& x, LossArgs args, const Tensor& g,
                                                 const std::optional<Tensor>& alpha, double alpha_value,
                                                 const Tensor& rows, const Tensor& index, const Tensor& value) {
  const int t = type_of(x);
  const Rows r = rows_of(x);
  STD_TORCH_CHECK(g.numel() == r.rows, "parsimax: the loss needs one gradient per row (", r.rows, "), got ", g.numel());
  Tensor dx = torch::stable::empty_like(x), dalpha = one_per_row(x, r.rows, alpha.has_value()), hold = x, hold_g = x;
  args.x = x.const_data_ptr();
  args.alpha = param(alpha, alpha_value, r.rows, hold);
  args.cap = index.size(1);
  args.rows = (LossRow*)rows.const_data_ptr();
  args.index = (int32_t*)index.const_data_ptr();
  args.value = (void*)value.const_data_ptr();
  args.g = param(g, 0, r.rows, hold_g);
  args.dx = dx.mutable_data_ptr();
  run(work[t], &args, r);
  if (alpha.has_value()) {
    auto out = (double*)dalpha.mutable_data_ptr();
    for (int64_t i = 0; i < r.rows; i++) {
      const double slope = args.rows[i].dalpha;
      out[i] = slope == 0 ? 0
                          : slope * (args.g.wide ? ((const double*)args.g.data)[i * args.g.stride]
                                                 : ((const float*)args.g.data)[i * args.g.stride]);
    }
  }
  return {dx, dalpha};
}
LossState loss_fwd(Tensor x, Tensor target, std::optional<Tensor> alpha, double alpha_value, double smoothing,
                   std::optional<Tensor> weight) {
  const Rows r = rows_of(x);
  STD_TORCH_CHECK(target.scalar_type() == ScalarType::Long && target.numel() == r.rows,
                  "parsimax: the loss needs one int64 target per row (", r.rows, "), got ", target.numel());
  x = packed(x);
  target = packed(target);
  LossArgs args{};
  args.n = r.n;
  args.target = (const int64_t*)target.const_data_ptr();
  for (int64_t i = 0; i < r.rows; i++)
    STD_TORCH_CHECK(args.target[i] >= -1 && args.target[i] < r.n, "parsimax: target ", args.target[i],
                    " is out of range for ", r.n, " classes");
  Tensor hold = x;
  set_smoothing(args, smoothing, weight, hold);
  return losses(kernels().loss, x, args, alpha, alpha_value);
}
std::tuple<Tensor, Tensor> loss_bwd(Tensor x, Tensor target, Tensor g, std::optional<Tensor> alpha, double alpha_value,
                                    double smoothing, std::optional<Tensor> weight, Tensor rows, Tensor index,
                                    Tensor value) {
  const Rows r = rows_of(x);
  STD_TORCH_CHECK(target.numel() == r.rows, "parsimax: the loss needs one target per row");
  x = packed(x);
  target = packed(target);
  LossArgs args{};
  args.n = r.n;
  args.target = (const int64_t*)target.const_data_ptr();
  Tensor hold = x;
  set_smoothing(args, smoothing, weight, hold);
  return loss_gradients(kernels().loss_grad, x, args, g, alpha, alpha_value, rows, index, value);
}
static LossArgs soft_args(const Tensor& x, const Tensor& target) {
  STD_TORCH_CHECK(type_of(target) == type_of(x) && target.numel() == x.numel(),
                  "parsimax: the scores and the target probabilities differ in type or size");
  LossArgs args{};
  args.n = rows_of(x).n;
  args.soft = target.const_data_ptr();
  return args;
}
LossState soft_loss_fwd(Tensor x, Tensor target, std::optional<Tensor> alpha, double alpha_value) {
  x = packed(x);
  target = packed(target);
  return losses(kernels().soft_loss, x, soft_args(x, target), alpha, alpha_value);
}
std::tuple<Tensor, Tensor> soft_loss_bwd(Tensor x, Tensor target, Tensor g, std::optional<Tensor> alpha,
                                         double alpha_value, Tensor rows, Tensor index, Tensor value) {
  x = packed(x);
  target = packed(target);
  return loss_gradients(kernels().soft_loss_grad, x, soft_args(x, target), g, alpha, alpha_value, rows, index, value);
}

STABLE_TORCH_LIBRARY_IMPL(parsimax, CPU, m) {
  m.impl("_loss_fwd", TORCH_BOX(&loss_fwd));
  m.impl("_loss_bwd", TORCH_BOX(&loss_bwd));
  m.impl("_soft_loss_fwd", TORCH_BOX(&soft_loss_fwd));
  m.impl("_soft_loss_bwd", TORCH_BOX(&soft_loss_bwd));
}
