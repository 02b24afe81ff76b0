//! Patterns over text from requests: `*` stands for anything within a segment,
//! `**` for anything, slashes included, and `/**/` also for a single slash.
//!
//! Matching is linear in the text for a given pattern: text from inside the
//! sandbox must not be able to make it slow.

/// Longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 1024;

/// A pattern, ready to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    tokens: Vec<Token>,
    /// Without stars: equal text is all that matches.
    literal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    Segment,
    Anything,
    /// The next two tokens (`**` and its slash) may be left out.
    Optional,
}

impl Pattern {
    /// Every text is a pattern; only its length is bounded.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("a pattern has at most {PATTERN_BYTES_MAX} bytes"));
        }
        let bytes = text.as_bytes();
        let mut tokens = Vec::with_capacity(bytes.len());
        let mut position = 0;
        while let Some(&byte) = bytes.get(position) {
            let rest = &bytes[position..];
            if rest.starts_with(b"**") {
                let after_slash = position == 0 || bytes[position - 1] == b'/';
                if after_slash && rest.get(2) == Some(&b'/') {
                    tokens.push(Token::Optional);
                }
                tokens.push(Token::Anything);
                position += rest.iter().take_while(|byte| **byte == b'*').count();
                continue;
            }
            tokens.push(match byte {
                b'*' => Token::Segment,
                byte => Token::Byte(byte),
            });
            position += 1;
        }
        let literal = tokens.iter().all(|token| matches!(token, Token::Byte(_)));
        Ok(Self { tokens, literal })
    }

    pub fn matches(&self, text: &str) -> bool {
        let text = text.as_bytes();
        if self.literal {
            let equal = |(token, byte): (&Token, &u8)| *token == Token::Byte(*byte);
            return text.len() == self.tokens.len() && self.tokens.iter().zip(text).all(equal);
        }
        // The set of tokens that the text so far may stand before.
        let mut before = vec![false; self.tokens.len() + 1];
        let mut after = before.clone();
        self.reach(&mut before, 0);
        for byte in text {
            after.fill(false);
            for (place, token) in self.tokens.iter().enumerate() {
                if !before[place] {
                    continue;
                }
                match token {
                    Token::Byte(wanted) if wanted == byte => self.reach(&mut after, place + 1),
                    Token::Segment if *byte != b'/' => self.reach(&mut after, place),
                    Token::Anything => self.reach(&mut after, place),
                    _ => {}
                }
            }
            std::mem::swap(&mut before, &mut after);
        }
        before[self.tokens.len()]
    }

    /// Marks a place and every place that nothing separates from it.
    fn reach(&self, places: &mut [bool], from: usize) {
        let mut place = from;
        while !places[place] {
            places[place] = true;
            match self.tokens.get(place) {
                Some(Token::Segment | Token::Anything) => place += 1,
                Some(Token::Optional) => {
                    self.reach(places, place + 3);
                    place += 1;
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Pattern::new(pattern).unwrap().matches(text)
    }

    #[test]
    fn stars_stay_in_their_segment_and_double_stars_do_not() {
        for (pattern, text) in [
            ("/a", "/a"),
            ("", ""),
            ("/a/*", "/a/b"),
            ("/a/*/c", "/a/b/c"),
            ("/a/**", "/a/b/c"),
            ("/a/**", "/a/"),
            ("/a/**/c", "/a/c"),
            ("/a/**/c", "/a/b/b/c"),
            ("**/c", "c"),
            ("**/c", "a/b/c"),
            ("acme/*-site", "acme/my-site"),
            ("refs/heads/agent/*", "refs/heads/agent/x"),
            ("**", "/a/b"),
            ("****", "/a/b"),
            ("a*b*c", "aXbbc"),
            ("/**/a/**", "/a/"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("/a", "/a/"),
            ("/a/*", "/a/b/c"),
            ("/a/**", "/a"),
            ("/a/**", "/ab/c"),
            ("/a/**/c", "/a/bc"),
            ("/a/**/c", "/ac"),
            ("acme/*", "acmee/x"),
            ("refs/heads/agent/*", "refs/heads/agent/x/y"),
            ("a*b*c", "aXbb"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn hostile_text_is_matched_in_linear_time() {
        let pattern = "**a*".repeat(100) + "b";
        assert!(!matches(&pattern, &"a".repeat(32 << 10)));
        assert!(Pattern::new(&"a".repeat(PATTERN_BYTES_MAX + 1)).is_err());
    }

    /// What the tokens mean, without any cleverness.
    fn naive(tokens: &[Token], text: &[u8]) -> bool {
        match tokens.first() {
            None => text.is_empty(),
            Some(Token::Byte(byte)) => {
                text.first() == Some(byte) && naive(&tokens[1..], &text[1..])
            }
            Some(Token::Segment) => {
                naive(&tokens[1..], text)
                    || text.first().is_some_and(|byte| *byte != b'/') && naive(tokens, &text[1..])
            }
            Some(Token::Anything) => {
                naive(&tokens[1..], text) || !text.is_empty() && naive(tokens, &text[1..])
            }
            Some(Token::Optional) => naive(&tokens[3..], text) || naive(&tokens[1..], text),
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_naive_matcher(pattern in "[ab/*]{0,10}", text in "[ab/]{0,10}") {
            let compiled = Pattern::new(&pattern).unwrap();
            prop_assert_eq!(compiled.matches(&text), naive(&compiled.tokens, text.as_bytes()));
        }
    }
}
