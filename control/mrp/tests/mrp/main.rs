//! The machines together, in whole fabrics.

mod faults;
mod limits;
mod net;
mod planner;
