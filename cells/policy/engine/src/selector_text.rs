//! The text of a selector, as the API shows it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use labels::CIDR;

/// The text of a selector. Equal texts are equal values. That of a prefix is formatted where it is needed: a rule may have
/// thousands of prefixes, and each of their selectors has its text in the engine, in plans, filters and tables.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SelectorText(Form);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Text(Arc<str>),
    Prefix(Plain),
}

/// A prefix of a length above 0, as it is written in a rule, without exceptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Plain {
    /// Host bits as written.
    pub(crate) prefix: IpNetwork,
    /// Whether it was written as an address, without a length.
    pub(crate) bare: bool,
}

impl SelectorText {
    /// Returns the text.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.0 {
            Form::Text(text) => text.as_ref().into(),
            Form::Prefix(plain) => plain.to_string().into(),
        }
    }

    /// Returns the prefix, host bits as written, and whether it was written as an address, without a length; `None` unless
    /// the text is that of a prefix of a length above 0 without exceptions.
    pub fn prefix(&self) -> Option<(IpNetwork, bool)> {
        self.plain().map(|plain| (plain.prefix, plain.bare))
    }

    pub(crate) fn plain(&self) -> Option<Plain> {
        if let Form::Prefix(plain) = self.0 { Some(plain) } else { None }
    }

    /// Returns the text of a selector that is not that of a plain prefix.
    pub(crate) fn other(text: Arc<str>) -> SelectorText {
        SelectorText(Form::Text(text))
    }
}

impl Plain {
    fn parse(text: &str) -> Option<Plain> {
        let written = text.strip_prefix(CIDR)?.strip_prefix(':')?;
        let plain = Plain { prefix: written.parse().ok()?, bare: !written.contains('/') };
        // Other spellings of a prefix are other texts.
        (plain.prefix.prefix() > 0 && plain.to_string() == text).then_some(plain)
    }
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bare {
            true => write!(f, "{CIDR}:{}", self.prefix.ip()),
            false => write!(f, "{CIDR}:{}", self.prefix),
        }
    }
}

impl From<Plain> for SelectorText {
    fn from(plain: Plain) -> SelectorText {
        SelectorText(Form::Prefix(plain))
    }
}

impl From<&str> for SelectorText {
    fn from(text: &str) -> SelectorText {
        SelectorText(Plain::parse(text).map_or_else(|| Form::Text(text.into()), Form::Prefix))
    }
}

impl From<&SelectorText> for Arc<str> {
    fn from(text: &SelectorText) -> Arc<str> {
        match &text.0 {
            Form::Text(text) => text.clone(),
            Form::Prefix(plain) => plain.to_string().into(),
        }
    }
}

impl PartialEq<str> for SelectorText {
    fn eq(&self, other: &str) -> bool {
        match &self.0 {
            Form::Text(text) => **text == *other,
            Form::Prefix(plain) => Plain::parse(other) == Some(*plain),
        }
    }
}

impl fmt::Display for SelectorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Text(text) => f.pad(text),
            Form::Prefix(plain) => plain.fmt(f),
        }
    }
}

impl fmt::Debug for SelectorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_prefixes_need_no_allocation_and_are_as_written() {
        assert!(size_of::<SelectorText>() <= 24);
        for (written, is_prefix) in [
            ("cidr:10.1.2.3/8", true),
            ("cidr:10.1.2.3", true),
            ("cidr:10.1.2.3/32", true),
            ("cidr:fd00::1/64", true),
            ("cidr:fd00:0::1/64", false),
            ("cidr:0.0.0.0/0", false),
            ("cidr:10.0.0.0/8-[10.1.0.0/16]", false),
            ("cidr:10.0.0.0/33", false),
            ("cidr:10.0.0.0/08", false),
            ("10.0.0.0/8", false),
            ("&LabelSelector{}", false),
            ("", false),
        ] {
            let text = SelectorText::from(written);
            assert_eq!(text.plain().is_some(), is_prefix, "{written}");
            assert_eq!((&*text.text(), text.to_string().as_str()), (written, written));
            assert_eq!(*Arc::<str>::from(&text), *written);
            assert!(text == *written && text != *"cidr:10.1.2.3/9", "{written}");
        }
    }
}
