//! The machines together, in whole fabrics.

mod faults;
mod limits;
mod meeting;
mod net;
mod planner;
