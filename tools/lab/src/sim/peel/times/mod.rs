//! Completion times of broadcasts (figures 4 to 7), simulated with trains of packets. docs/peel.md gives the model.

mod fabric;
mod figures;
mod network;
mod points;
mod runs;
mod schemes;
#[cfg(test)]
mod tests;

pub(super) use figures::{fig4, fig5, fig6, fig7, guard};
