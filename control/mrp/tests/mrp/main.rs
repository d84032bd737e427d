//! The machines together, in whole fabrics.

mod faults;
mod hosts;
mod limits;
mod meeting;
mod net;
mod planner;
mod registrar;
