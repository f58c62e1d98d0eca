//! A line that is being typed: what each key does to it.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Enter,
    Tab,
    Backspace,
    Delete,
    Left,
    Right,
    Up,
    Down,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D.
    EndOfInput,
    /// Ctrl-K.
    CutEnd,
    /// Ctrl-U.
    CutBegin,
    /// Ctrl-W.
    CutWord,
    Unknown,
}

/// What a key leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The line has changed, or not.
    Edit,
    /// The text up to the cursor should be completed.
    Complete,
    /// The line is complete.
    Line(String),
    /// The user leaves.
    Leave,
}

/// Lines kept in the history.
const HISTORY: usize = 1000;

#[derive(Default)]
pub(crate) struct Editor {
    text: Vec<char>,
    cursor: usize,
    history: Vec<String>,
    /// Where in the history the user is, counted from its end.
    back: usize,
    /// What was typed before the user went back.
    draft: Vec<char>,
}

impl Editor {
    pub(crate) fn text(&self) -> String {
        self.text.iter().collect()
    }

    /// Characters in front of the cursor.
    pub(crate) fn cursor(&self) -> usize {
        self.cursor
    }

    pub(crate) fn before_cursor(&self) -> String {
        self.text[..self.cursor].iter().collect()
    }

    pub(crate) fn key(&mut self, key: Key) -> Step {
        match key {
            Key::Char(c) => {
                self.text.insert(self.cursor, c);
                self.cursor += 1;
            }
            Key::Enter => {
                let line = self.text();
                self.reset();
                if !line.trim().is_empty() && self.history.last() != Some(&line) {
                    self.history.push(line.clone());
                    let excess = self.history.len().saturating_sub(HISTORY);
                    self.history.drain(..excess);
                }
                return Step::Line(line);
            }
            Key::Tab => return Step::Complete,
            Key::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.text.remove(self.cursor);
            }
            Key::Delete | Key::EndOfInput if self.cursor < self.text.len() => {
                self.text.remove(self.cursor);
            }
            Key::EndOfInput if self.text.is_empty() => return Step::Leave,
            Key::Left => self.cursor = self.cursor.saturating_sub(1),
            Key::Right => self.cursor = (self.cursor + 1).min(self.text.len()),
            Key::Home => self.cursor = 0,
            Key::End => self.cursor = self.text.len(),
            Key::Up if self.back < self.history.len() => self.go_back(self.back + 1),
            Key::Down if self.back > 0 => self.go_back(self.back - 1),
            Key::Interrupt => self.reset(),
            Key::CutEnd => self.text.truncate(self.cursor),
            Key::CutBegin => {
                self.text.drain(..self.cursor);
                self.cursor = 0;
            }
            Key::CutWord => {
                let before = &self.text[..self.cursor];
                let word = before.iter().rposition(|c| *c != ' ').map_or(0, |end| end + 1);
                let begin = before[..word].iter().rposition(|c| *c == ' ').map_or(0, |at| at + 1);
                self.text.drain(begin..self.cursor);
                self.cursor = begin;
            }
            _ => {}
        }
        Step::Edit
    }

    fn reset(&mut self) {
        (self.text, self.cursor, self.back, self.draft) = (vec![], 0, 0, vec![]);
    }

    fn go_back(&mut self, back: usize) {
        if self.back == 0 {
            self.draft = self.text.clone();
        }
        self.back = back;
        self.text = match back {
            0 => self.draft.clone(),
            back => self.history[self.history.len() - back].chars().collect(),
        };
        self.cursor = self.text.len();
    }

    /// Puts what all candidates have in common in the place of the text up to the cursor; true if that changed it.
    pub(crate) fn complete(&mut self, candidates: &[String]) -> bool {
        let Some(first) = candidates.first() else { return false };
        let mut common: Vec<char> = first.chars().collect();
        for candidate in &candidates[1..] {
            let same = common.iter().zip(candidate.chars()).take_while(|(a, b)| **a == *b).count();
            common.truncate(same);
        }
        // A flag goes on with its value, or with a blank if it has none.
        let flag = first.rsplit(' ').next().is_some_and(|word| word.starts_with("--") && !word.contains('='));
        if candidates.len() == 1 && !flag {
            common.push(' ');
        }
        if common.len() <= self.cursor {
            return false;
        }
        let end = common.len();
        self.text.splice(..self.cursor, common);
        self.cursor = end;
        true
    }
}

/// Takes a key from the front of what was typed; none if it is not complete.
pub(crate) fn decode(typed: &mut Vec<u8>) -> Option<Key> {
    let first = *typed.first()?;
    let (key, length) = match first {
        b'\r' | b'\n' => (Key::Enter, 1),
        b'\t' => (Key::Tab, 1),
        1 => (Key::Home, 1),
        3 => (Key::Interrupt, 1),
        4 => (Key::EndOfInput, 1),
        5 => (Key::End, 1),
        8 | 127 => (Key::Backspace, 1),
        11 => (Key::CutEnd, 1),
        16 => (Key::Up, 1),
        14 => (Key::Down, 1),
        21 => (Key::CutBegin, 1),
        23 => (Key::CutWord, 1),
        27 => escape(typed)?,
        0..32 => (Key::Unknown, 1),
        _ => {
            let length = match first {
                0..0xc0 => 1,
                0xc0..0xe0 => 2,
                0xe0..0xf0 => 3,
                _ => 4,
            };
            let bytes = typed.get(..length)?;
            let text = std::str::from_utf8(bytes).ok();
            (text.and_then(|text| text.chars().next()).map_or(Key::Unknown, Key::Char), length)
        }
    };
    typed.drain(..length);
    Some(key)
}

/// `ESC [ A`, `ESC O A`, `ESC [ 3 ~`.
fn escape(typed: &[u8]) -> Option<(Key, usize)> {
    if !matches!(typed.get(1)?, b'[' | b'O') {
        return Some((Key::Unknown, 2));
    }
    let end = 2 + typed[2..].iter().position(|byte| (0x40..0x7f).contains(byte))?;
    let key = match (&typed[2..end], typed[end]) {
        ([], b'A') => Key::Up,
        ([], b'B') => Key::Down,
        ([], b'C') => Key::Right,
        ([], b'D') => Key::Left,
        ([], b'H') | (b"1" | b"7", b'~') => Key::Home,
        ([], b'F') | (b"4" | b"8", b'~') => Key::End,
        (b"3", b'~') => Key::Delete,
        _ => Key::Unknown,
    };
    Some((key, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(editor: &mut Editor, bytes: &[u8]) -> Vec<Step> {
        let mut bytes = bytes.to_vec();
        let mut steps = vec![];
        while let Some(key) = decode(&mut bytes) {
            steps.push(editor.key(key));
        }
        assert!(bytes.is_empty(), "{bytes:?}");
        steps.retain(|step| *step != Step::Edit);
        steps
    }

    #[test]
    fn keys_edit_the_line() {
        let mut editor = Editor::default();
        typed(
            &mut editor,
            "hllo\x1b[D\x1b[D\x1b[D\x01\x1b[Ce\x05 wörld x\x17\x7f!\x1b[1~\x1b[3~H".as_bytes(),
        );
        assert_eq!(editor.text(), "Hello wörld!");
        assert_eq!(typed(&mut editor, b"\x04"), []);
        assert_eq!(typed(&mut editor, b"\x0b\x15\x04"), [Step::Leave]);
    }

    #[test]
    fn history_goes_up_and_down() {
        let mut editor = Editor::default();
        assert_eq!(typed(&mut editor, b"one\rtwo\rtwo\r").len(), 3);
        typed(&mut editor, b"dr\x1b[A");
        assert_eq!(editor.text(), "two");
        typed(&mut editor, b"\x1b[A\x1b[A");
        assert_eq!(editor.text(), "one");
        typed(&mut editor, b"\x1b[B\x1b[B\x1b[B");
        assert_eq!(editor.text(), "dr");
        typed(&mut editor, b"\x03");
        assert_eq!(editor.text(), "");
    }

    #[test]
    fn completion_goes_as_far_as_it_is_clear() {
        let mut editor = Editor::default();
        typed(&mut editor, b"db/s");
        assert!(!editor.complete(&[]));
        assert!(editor.complete(&["db/show".into()]));
        assert_eq!(editor.text(), "db/show ");
        assert!(editor.complete(&["db/show nodes".into(), "db/show node-addresses".into()]));
        assert_eq!(editor.text(), "db/show node");
        assert!(!editor.complete(&["db/show nodes".into(), "db/show node-addresses".into()]));
        assert!(editor.complete(&["db/show nodes --columns".into()]));
        assert_eq!(editor.text(), "db/show nodes --columns");
        assert!(editor.complete(&["db/show nodes --columns=Name".into()]));
        assert_eq!(editor.text(), "db/show nodes --columns=Name ");
    }
}
