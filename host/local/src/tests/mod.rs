//! Jobs of threads over a network in this process: every collective against a slow twin, and ranks that fail.

mod collectives;
mod failures;
mod fake;
mod hostile;

use std::time::Duration;

use castnet_comm::{CommConfig, CommError, Controllers};

use crate::{Hierarchical, Options, PathChoice};
use fake::{Board, Fake};

/// A rank's configuration; nobody calls the controller.
pub(crate) fn config(rank: usize, size: usize, host: &str) -> CommConfig {
    let controllers = "http://127.0.0.1:1".parse::<Controllers>().expect("an address");
    let mut config = CommConfig::new(controllers, "job", rank as u16, size as u16, host);
    config.timeouts.collective = Duration::from_secs(60);
    config
}

fn options(piece_bytes: usize) -> Options {
    Options {
        piece_bytes,
        ..Options::new(PathChoice::Hierarchical)
    }
}

/// Runs a job: one thread for each rank, at the host of its index. Returns what the ranks return.
fn job<R: Send>(
    hosts: &[u8],
    change: impl Fn(&mut CommConfig) + Sync,
    options: Options,
    part: impl Fn(Result<Hierarchical<Fake>, CommError>) -> R + Sync,
) -> Vec<R> {
    let board = Board::new(hosts.len());
    let (board, change, part) = (&board, &change, &part);
    std::thread::scope(|scope| {
        let start = |(rank, host): (usize, &u8)| {
            let name = format!("h{host}");
            scope.spawn(move || {
                let mut config = config(rank, hosts.len(), &name);
                change(&mut config);
                part(Hierarchical::new(
                    Fake::new(board.clone(), rank),
                    &config,
                    options,
                ))
            })
        };
        let threads: Vec<_> = hosts.iter().enumerate().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}
