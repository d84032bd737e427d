//! What a group is for.

use std::fmt;
use std::str::FromStr;

/// What a group is for, as a text for people; empty, the default: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description(String);

impl Description {
    /// Most characters.
    const LENGTH_MAX: usize = 200;
    /// How descriptions are written.
    pub const FORM: &str = "a description: at most 200 characters, and no control characters";

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Error: the text is too long, or has control characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not {}", Description::FORM)]
pub struct NoDescription;

impl FromStr for Description {
    type Err = NoDescription;

    fn from_str(text: &str) -> Result<Self, NoDescription> {
        match text.chars().count() <= Self::LENGTH_MAX && !text.contains(char::is_control) {
            true => Ok(Self(text.into())),
            false => Err(NoDescription),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_has_200_characters_at_most_and_no_control_characters() {
        for text in ["", "nightly training, team ß", "ß".repeat(200).as_str()] {
            let read = text.parse::<Description>().expect(text);
            assert_eq!(
                (read.to_string().as_str(), read.is_empty()),
                (text, text.is_empty())
            );
        }
        for text in ["ß".repeat(201).as_str(), "a\nb", "\u{7f}", "\u{9b}1m"] {
            let refused = text.parse::<Description>().expect_err(text);
            assert!(refused.to_string().contains("200 characters"), "{refused}");
        }
    }
}
