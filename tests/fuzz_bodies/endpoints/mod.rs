//! The stateful target: a program drives two endpoints and the network between them, and everything is judged.
//!
//! An input is a [`Setup`] and then instructions of three bytes each: what to do, and two arguments. Nothing is delivered
//! unless an instruction says so. At the end the network heals, and all that was posted has to come to an end.
//!
//! Packets that are forged and right in all that a receiver can check may write memory and acknowledge what never arrived.
//! Only setups with `forges` have them, and these are judged for less: see [`Ledger::forged`](crate::support::ledger::Ledger).

mod setup;
mod steps;
mod world;

use setup::Setup;
use world::World;

/// Instructions of a program; what follows is ignored.
const MAX_STEPS: usize = 96;

/// Runs the program `data`.
pub(crate) fn endpoints(data: &[u8]) {
    let (head, program) = data.split_at(data.len().min(Setup::LEN));
    let mut world = World::build(&Setup::read(head));
    for step in program.as_chunks::<3>().0.iter().take(MAX_STEPS) {
        world.step(*step);
        world.judge();
    }
    world.finish();
}
