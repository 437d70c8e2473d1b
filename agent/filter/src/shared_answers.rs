//! Answers that several rules of a filter give, once: the kernel compiles a filter for each process that installs it, and each return of it
//! as the end of a function.

use crate::bpf::{JUMP, JUMP_ANY_BIT, JUMP_EQUAL, JUMP_GREATER_EQUAL, Program, RETURN};

/// How far a condition reaches, in instructions from the next one on.
const REACH: usize = u8::MAX as usize;

/// The same decisions by fewer instructions.
pub fn share(program: Program) -> Program {
    let mut steps = program.into_steps();
    loop {
        let before = steps.len();
        steps = packed(&shared(steps));
        if steps.len() == before {
            return Program::of(steps);
        }
    }
}

fn is_condition(step: &libc::sock_filter) -> bool {
    matches!(step.code, JUMP_EQUAL | JUMP_GREATER_EQUAL | JUMP_ANY_BIT)
}

/// Where the two ways of the condition at `at` lead.
fn ways(at: usize, step: &libc::sock_filter) -> [usize; 2] {
    [step.jt, step.jf].map(|far| at + 1 + usize::from(far))
}

/// Where whoever comes to `way` is led by jumps, as far as `last`.
fn led_on(steps: &[libc::sock_filter], mut way: usize, last: usize) -> usize {
    while steps[way].code == JUMP && way + 1 + steps[way].k as usize <= last {
        way += 1 + steps[way].k as usize;
    }
    way
}

/// Has conditions that lead to the same answer lead to as few places with it as they reach.
fn shared(mut steps: Vec<libc::sock_filter>) -> Vec<libc::sock_filter> {
    let conditions: Vec<_> = (0..steps.len()).filter(|at| is_condition(&steps[*at])).collect();
    // In order of how far they reach, so that the last place within reach of one is within that of those to come, unless they begin behind.
    let mut places: Vec<(u32, usize)> = Vec::new();
    for at in conditions {
        let last = (at + 1 + REACH).min(steps.len() - 1);
        let moved = ways(at, &steps[at]).map(|way| {
            let way = led_on(&steps, way, last);
            let answer = steps[way];
            if answer.code != RETURN {
                return way;
            }
            let is_same = |place: usize| steps[place].code == RETURN && steps[place].k == answer.k;
            if let Some((_, place)) = places.iter().find(|(k, place)| *k == answer.k && (way..=last).contains(place)) {
                return *place;
            }
            let place = (way..=last).rev().find(|place| is_same(*place)).unwrap_or(way);
            places.push((answer.k, place));
            place
        });
        let [jt, jf] = moved.map(|way| (way - at - 1) as u8);
        steps[at] = libc::sock_filter { jt, jf, ..steps[at] };
    }
    steps
}

/// Without what nothing leads to.
fn packed(steps: &[libc::sock_filter]) -> Vec<libc::sock_filter> {
    let mut reached = vec![false; steps.len()];
    reached[0] = true;
    // All ways lead forward.
    for (at, step) in steps.iter().enumerate() {
        if !reached[at] {
            continue;
        }
        match step.code {
            RETURN => {}
            JUMP => reached[at + 1 + step.k as usize] = true,
            _ if is_condition(step) => ways(at, step).into_iter().for_each(|way| reached[way] = true),
            _ => reached[at + 1] = true,
        }
    }
    let kept_before = reached.iter().scan(0, |count, kept| {
        let before = *count;
        *count += usize::from(*kept);
        Some(before)
    });
    let places: Vec<usize> = kept_before.collect();
    let far = |at: usize, way: usize| places[way] - places[at] - 1;
    let kept = steps.iter().enumerate().filter(|(at, _)| reached[*at]);
    kept.map(|(at, step)| match step.code {
        JUMP => libc::sock_filter { k: far(at, at + 1 + step.k as usize) as u32, ..*step },
        _ if is_condition(step) => {
            let [jt, jf] = ways(at, step).map(|way| far(at, way) as u8);
            libc::sock_filter { jt, jf, ..*step }
        }
        _ => *step,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{AUDIT_ARCH, Calls, NUMBER, run};

    /// Of so many calls, each answered by one of three values, or by that of its argument.
    fn program_of(count: i64) -> Program {
        let mut calls = Calls::default();
        for call in 0..count {
            calls.only_for(call * 2, |rules| {
                if call % 5 == 0 {
                    rules.load(crate::bpf::argument(0));
                    rules.when(7, call as u32 % 3);
                }
                rules.give(call as u32 * 7 % 3);
            });
        }
        let mut program = Program::default();
        program.load(NUMBER);
        program.go_by(&calls, 9);
        program
    }

    #[test]
    fn what_is_decided_stays_and_few_answers_are_left() {
        for count in [0, 1, 2, 7, 100, 1_000] {
            let (whole, shared) = (program_of(count), share(program_of(count)));
            for call in 0..count * 2 + 3 {
                for argument in [7, 8] {
                    let decided = |program| run(program, call, AUDIT_ARCH, [argument; 6]);
                    assert_eq!(decided(&shared), decided(&whole), "call {call} of {count}");
                }
            }
            let answers = shared.steps().iter().filter(|step| step.code == RETURN).count();
            // Of four values, and of each again where it is out of reach.
            assert!(answers <= 4 * (1 + shared.steps().len() / (REACH / 2)), "{answers} of {}", shared.steps().len());
        }
    }

    #[test]
    fn the_refusals_stay_what_they_are() {
        for (whole, shared) in crate::refusals::both_ways() {
            assert!(shared.steps().len() * 4 < whole.steps().len() * 3, "{} steps", shared.steps().len());
            // Nothing is left that sharing once more would save.
            assert_eq!(share(Program::of(shared.steps().to_vec())).steps().len(), shared.steps().len());
            let compared: std::collections::BTreeSet<u32> =
                whole.steps().iter().filter(|step| is_condition(step)).map(|step| step.k).collect();
            let words = || compared.iter().flat_map(|k| [k.wrapping_sub(1), *k, k.wrapping_add(1)]).map(u64::from);
            for call in compared.iter().map(|k| i64::from(*k)).filter(|call| *call < 1_000).chain(0..700) {
                for (arch, call) in [(AUDIT_ARCH, call), (AUDIT_ARCH, call | 0x4000_0000), (0x4000_0003, call)] {
                    for word in words() {
                        for arguments in [[word; 6], [2, word, 0, word, 0, 0], [2, 1, word, 0, word, 1 << 40]] {
                            let decided = |program| run(program, call, arch, arguments);
                            assert_eq!(decided(&shared), decided(&whole), "call {call} of {arch:x}: {arguments:?}");
                        }
                    }
                }
            }
        }
    }
}
