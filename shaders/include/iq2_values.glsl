// Magnitudes of the IQ2 formats: rows of 8, by the row's number in the grid (grid.glsl). Two of its rows are a word, one in the low and
// the next in the high nibbles of the bytes; bits 0, 1 of a nibble are the level of weight c, bits 2, 3 that of weight 4 + c, of byte c.
#include "signed_values.glsl"

// Levels 0, 1, 2 in bytes as magnitudes 8, 25, 43.
uint iq2_magnitudes(uint levels) { return levels + (levels << 4) + ((levels >> 1) & 0x01010101u) + 0x08080808u; }

// Values of a row with 128 added. signs: as all_signs gives them, those of the row in bits 0 and 4 of each byte.
void iq2_values(uint row, uint signs, out vec4 a, out vec4 b) {
    const uint levels = grid[row >> 1] >> (4u * (row & 1u));
    a = signed_values(iq2_magnitudes(levels & 0x03030303u), signs & 0x01010101u);
    b = signed_values(iq2_magnitudes((levels >> 2) & 0x03030303u), (signs >> 4) & 0x01010101u);
}
