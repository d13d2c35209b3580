// Rows of a few-rows run that a delta-net layer keeps until they are part of its state, and where they lie, as in
// vkprefill/engine/kept_rows.py. Two halves of KEPT rows take turns: those of the run before, of which the first `waiting` are accepted, and
// those of this one, from kept_row on. Raw rows have one place: a row of this run takes that of one before, which was read by then.
//
//   raw    [KEPT, C]          before the convolution
//   qkv    [2 KEPT, C]        normalised q (scaled) and k, then v
//   gates  [2 KEPT, Hv, 2]    (log_decay, beta)
//
// C and Hv are the including shader's; offsets are in floats, multiples of 4.
const uint KEPT = 8u;

// Index of a row, in words of 4.
uint raw_at(uint offset, uint row) { return (offset + row * C) / 4u; }
uint qkv_at(uint offset, uint row) { return (offset + (KEPT + row) * C) / 4u; }
// In words of 2.
uint gates_at(uint offset, uint row) { return (offset + 3u * KEPT * C) / 2u + row * Hv; }
