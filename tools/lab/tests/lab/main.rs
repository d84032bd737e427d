//! The experiments as a user runs them: one program.

mod epic;
mod shufflecast;
mod sim;
