//! All of this crate's tests are one program, so that what they share is compiled once.

mod bench;
mod cli;
mod collective;
mod fabric;
mod live;
mod lives;
<<<<<<< HEAD
mod purge;
=======
mod operators;
>>>>>>> de20deb (controller, cli: castnet plan shows where a group would be placed and why; castnet store check, export and import)
