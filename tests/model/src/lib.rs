//! Model checking of the very machines that ship
