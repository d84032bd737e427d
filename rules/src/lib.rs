//! The lingua franca: typed match keys, actions and group contexts, and their TOML files
