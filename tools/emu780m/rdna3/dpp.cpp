// DPP: the first operand of a vector instruction is read from other lanes of its row of 16.
#include "vector.h"

namespace rdna3::WAVES {

bool take_dpp(Text& text, Dpp& dpp) {
    static constexpr struct {
        const char* key;
        Dpp::Pattern pattern;
    } amounts[] = {
        {"row_shl", Dpp::ROW_SHL}, {"row_shr", Dpp::ROW_SHR}, {"row_ror", Dpp::ROW_ROR},
        {"row_share", Dpp::ROW_SHARE}, {"row_xmask", Dpp::ROW_XMASK},
    };
    if (text.digits("quad_perm", dpp.quad)) {
        dpp.pattern = Dpp::QUAD_PERM;
    } else if (text.word("row_mirror")) {
        dpp.pattern = Dpp::ROW_MIRROR;
    } else if (text.word("row_half_mirror")) {
        dpp.pattern = Dpp::HALF_MIRROR;
    } else {
        for (const auto& [key, pattern] : amounts) {
            if (!text.has(key))
                continue;
            dpp.pattern = pattern;
            dpp.amount = text.number(key);
            break;
        }
    }
    if (!dpp.pattern) {
        if (text.dpp)
            text.refuse("unknown");
        return false;
    }
    dpp.row_mask = (u8)text.number("row_mask", 15);
    dpp.bank_mask = (u8)text.number("bank_mask", 15);
    dpp.bound_ctrl = text.number("bound_ctrl") != 0;
    dpp.fetch_inactive = text.number("fi") != 0;
    return true;
}

// The lane that a lane reads; -1: outside the row.
static int source_lane(const Dpp& dpp, int lane) {
    const int row = lane & ~15;
    const int place = lane & 15;
    switch (dpp.pattern) {
        case Dpp::QUAD_PERM:
            return (lane & ~3) + dpp.quad[lane & 3];
        case Dpp::ROW_SHL:
            return place + dpp.amount < 16 ? lane + dpp.amount : -1;
        case Dpp::ROW_SHR:
            return place >= dpp.amount ? lane - dpp.amount : -1;
        case Dpp::ROW_ROR:
            return row + ((place - dpp.amount) & 15);
        case Dpp::ROW_MIRROR:
            return row + 15 - place;
        case Dpp::HALF_MIRROR:
            return (lane & ~7) + 7 - (lane & 7);
        case Dpp::ROW_SHARE:
            return row + dpp.amount;
        case Dpp::ROW_XMASK:
            return row + (place ^ dpp.amount);
        case Dpp::NONE:
            break;
    }
    fail("dpp");
}

Mask shuffle(const Wave& wave, const Dpp& dpp, const u32* from, u32* to) {
    const Mask on = exec(wave);
    Mask kept = 0;
    for (int lane = 0; lane < LANES; lane++) {
        const int source = source_lane(dpp, lane);
        const bool valid = source >= 0 && (dpp.fetch_inactive || is_on(on, source));
        to[lane] = valid ? from[source] : 0;
        const bool masked = !is_on(dpp.row_mask, lane / 16) || !is_on(dpp.bank_mask, lane / 4 % 4);
        if (masked || (!valid && !dpp.bound_ctrl))
            kept |= (Mask)1 << lane;
    }
    return kept;
}

}  // namespace rdna3::WAVES
