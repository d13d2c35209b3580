// Branches, the barrier, the end; waits and hints, which have nothing to do here.
#include <map>
#include <set>

#include "classes.h"

namespace rdna3::WAVES {

static void do_nothing(Wave&, const Instruction&) {}

// Memory answers at once here, so a wait has nothing to wait for: a missing one is not noticed.
bool select_idle(Instruction& to) {
    static const std::set<std::string> idle = {
        "s_waitcnt", "s_waitcnt_depctr", "s_waitcnt_vscnt", "s_waitcnt_vmcnt", "s_waitcnt_lgkmcnt", "s_waitcnt_expcnt",
        "s_delay_alu", "s_nop", "s_clause", "s_sendmsg", "s_set_inst_prefetch_distance", "s_inst_prefetch", "s_sleep",
        "s_code_end", "s_version", "s_setprio", "s_icache_inv", "s_dcache_inv", "s_ttracedata", "s_wait_idle",
        "buffer_gl0_inv", "buffer_gl1_inv", "v_nop",
    };
    const std::string name = to.text.substr(0, to.text.find_first_of(" \t"));
    // Where scratch lies is not asked for here.
    const bool flat_scratch = name.rfind("s_setreg", 0) == 0 && to.text.find("FLAT_SCR") != std::string::npos;
    if (!flat_scratch && !idle.count(name))
        return false;
    to.execute = do_nothing;
    to.stat = name == "s_code_end" ? OTHER : name == "v_nop" ? VALU : NOPS;
    to.issue = name[0] == 's' && !flat_scratch ? 0 : 1;
    return true;
}

static bool vcc_zero(const Wave& wave) {
    return !wave.s[VCC] && !(LANES == 64 && wave.s[VCC + 1]);
}

static void run_branch(Wave& wave, const Instruction& branch) {
    if (!branch.condition(wave))
        return;
    wave.next = branch.target;
    wave.stats->branches++;
}

bool select_branch(Text& text, Instruction& to) {
    using Condition = bool (*)(const Wave&);
    static const std::map<std::string, Condition> conditions = {
        {"s_branch", [](const Wave&) { return true; }},
        {"s_cbranch_scc0", [](const Wave& wave) { return !wave.scc; }},
        {"s_cbranch_scc1", [](const Wave& wave) { return wave.scc; }},
        {"s_cbranch_execz", [](const Wave& wave) { return exec(wave) == 0; }},
        {"s_cbranch_execnz", [](const Wave& wave) { return exec(wave) != 0; }},
        {"s_cbranch_vccz", vcc_zero},
        {"s_cbranch_vccnz", [](const Wave& wave) { return !vcc_zero(wave); }},
    };
    const auto found = conditions.find(text.name);
    if (found != conditions.end()) {
        text.expect(1);
        if (text.operands[0].kind != Operand::CONSTANT)
            text.refuse("operands");
        to.execute = run_branch;
        to.condition = found->second;
        to.target = (i16)text.operands[0].value;
        to.stat = SALU;
        return true;
    }
    if (text.name == "s_endpgm") {
        text.expect(0);
        to.execute = [](Wave& wave, const Instruction&) { wave.done = true; };
        to.stat = SALU;
        return true;
    }
    if (text.name == "s_barrier") {
        text.expect(0);
        to.execute = [](Wave& wave, const Instruction&) { wave.at_barrier = true; };
        to.stat = BARRIER;
        return true;
    }
    return false;
}

}  // namespace rdna3::WAVES
