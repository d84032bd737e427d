//! Pure planning: topology and request to rules
