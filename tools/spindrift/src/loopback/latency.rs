//! One size of a latency run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::bench::contents::Contents;
use crate::bench::endpoint_setup::Side;
use crate::bench::pin::Cores;
use crate::bench::pingpong::{Game, Led, Player};
use crate::bench::report::LatencyRow;
use crate::bench::transport::Nics;
use crate::stop::Stop;

/// The other side of a latency run.
enum Follower<'a> {
    Player(Box<Player<'a>>),
    /// The transport alone.
    Responder(&'a Nics),
}

/// Gives memory the bytes that are read, and the counters their first values.
fn prepare(contents: &Contents, writer: &Side, target: &Side, stop: &Stop) -> Result<()> {
    let Contents { layout, operations, seed } = contents;
    if operations.has_reads() {
        [writer, target]
            .into_iter()
            .try_for_each(|side| layout.fill(side.source.region(), *seed, &mut || stop.check()))?;
    }
    if operations.has_atomics() {
        contents.clear(target.target.region(), &mut || stop.check())?;
    }
    Ok(())
}

/// One size of ping-pong.
pub(super) fn play(
    writer: &mut Side,
    target: &mut Side,
    game: Game,
    cores: &[Cores; 2],
    stop: &Stop,
) -> Result<LatencyRow> {
    let (to_writer, to_target, mtu) = (writer.remote(), target.remote(), writer.in_use.mtu);
    let [leading, following] = cores;
    let idle = leading.idle();
    let Game { layout, seed, .. } = &game;
    let operations = writer.work.operations;
    let contents = Contents { layout: *layout, operations, seed: *seed };
    prepare(&contents, writer, target, stop)?;
    let far = target.target.region().clone();
    let mut leader = Player::new(writer, game, &to_target, mtu, idle)?;
    let mut follower = if operations.has_fetches() {
        Follower::Responder(&target.nics)
    } else {
        Follower::Player(Box::new(Player::new(target, game, &to_writer, mtu, idle)?))
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let follow = scope.spawn(|| {
            following.pin(0);
            let mut idle = idle;
            let mut go_on =
                |_| if over.load(Ordering::Acquire) { bail!("the other side ended") } else { stop.check() };
            let longest_pause = match &mut follower {
                Follower::Player(player) => player.follow(&mut go_on)?,
                Follower::Responder(_) => Duration::ZERO,
            };
            // The leader needs acknowledgements and responses until it has ended too.
            while !over.load(Ordering::Acquire) {
                match &mut follower {
                    Follower::Player(player) => {
                        player.drain(&mut |_| Ok(()))?;
                        player.turn();
                    }
                    Follower::Responder(nics) => idle.after(nics.poll()),
                }
            }
            Ok(longest_pause)
        });
        leading.pin(0);
        let mut go_on = |_| stop.check();
        let led = leader.lead(&mut go_on).and_then(|led| {
            leader.drain(&mut go_on)?;
            Ok(led)
        });
        over.store(true, Ordering::Release);
        while !follow.is_finished() {
            leader.turn();
        }
        let followed = follow.join().unwrap_or_else(|_| bail!("the other side's thread panicked"));
        let led = led?;
        let longest_pause = led.longest_pause.max(followed?);
        let led = Led { longest_pause, ..led };
        if operations.has_atomics() {
            let all = [game.all()];
            let untouched = |_: usize, _: &mut [u8]| bail!("nothing was written");
            if contents.check_there(&far, &untouched, &all, None, &mut || stop.check())?.is_some() {
                bail!("the counter does not hold what the {} had to leave there", operations.plural());
            }
        }
        let row = LatencyRow::new(game.layout.size, &led);
        row.warn_of_pause(&led);
        Ok(row)
    })
}
