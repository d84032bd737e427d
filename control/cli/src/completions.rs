use castnet_console::exit::Outcome;
use castnet_console::output::write_stdout;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;

/// Prints completions for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet completions bash > /etc/bash_completion.d/castnet
  castnet completions zsh > ~/.zfunc/_castnet
  castnet completions fish > ~/.config/fish/completions/castnet.fish")]
pub(crate) struct CompletionsCommand {
    /// Which shell
    shell: Shell,
}

impl CompletionsCommand {
    pub(crate) fn run(self) -> Outcome {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "castnet", &mut text);
        write_stdout(&String::from_utf8_lossy(&text))
    }
}
