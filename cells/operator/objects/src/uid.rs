//! Uids of objects.

use std::fmt;

use k8s_types::SmolStr;
use serde::{Serialize, Serializer};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// The uid of an object: as 16 bytes if it is a UUID in the form that API servers write, which as a text takes 64 bytes more.
#[derive(Clone, PartialEq, Eq)]
pub struct Uid(Form);

#[derive(Clone, PartialEq, Eq)]
enum Form {
    Uuid(Uuid),
    Text(SmolStr),
}

const _: () = assert!(size_of::<Uid>() == size_of::<SmolStr>());

impl From<SmolStr> for Uid {
    fn from(text: SmolStr) -> Uid {
        let uuid = Uuid::try_parse(&text).ok();
        // Other forms of UUIDs are texts: a precondition must name the uid as the server has it.
        let same =
            uuid.filter(|uuid| uuid.hyphenated().encode_lower(&mut [0; Hyphenated::LENGTH]) == text.as_str());
        Uid(same.map_or(Form::Text(text), Form::Uuid))
    }
}

impl From<&Uid> for SmolStr {
    fn from(uid: &Uid) -> SmolStr {
        match &uid.0 {
            Form::Uuid(uuid) => SmolStr::new(uuid.hyphenated().encode_lower(&mut [0; Hyphenated::LENGTH])),
            Form::Text(text) => text.clone(),
        }
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Uuid(uuid) => uuid.hyphenated().fmt(f),
            Form::Text(text) => text.fmt(f),
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", SmolStr::from(self))
    }
}

impl Serialize for Uid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_kept_as_it_is() {
        let canonical = "00000001-0000-4000-8000-0000000abcde";
        let upper = canonical.to_uppercase();
        let simple = canonical.replace('-', "");
        for text in [
            "",
            "u",
            "b-1",
            canonical,
            &upper,
            &simple,
            &format!("{{{canonical}}}"),
            &format!("urn:uuid:{canonical}"),
        ] {
            let uid = Uid::from(SmolStr::new(text));
            assert_eq!(SmolStr::from(&uid), text);
            assert_eq!(uid.to_string(), text);
            assert_eq!(matches!(uid.0, Form::Uuid(_)), text == canonical, "{text}");
            assert_eq!(uid, Uid::from(SmolStr::new(text)));
        }
        assert_ne!(Uid::from(SmolStr::new(canonical)), Uid::from(SmolStr::new(upper)));
    }
}
