//! Bytes in JSON: as text where they are text, as numbers where they are not,
//! so that a name that is not UTF-8 comes back as it was.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(bytes.to_vec()),
        }
    }
}

impl From<Text> for Vec<u8> {
    fn from(text: Text) -> Self {
        match text {
            Text::Text(text) => text.into_bytes(),
            Text::Bytes(bytes) => bytes,
        }
    }
}

/// For `#[serde(with = "text")]` on a field of bytes.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    Text::from(bytes).serialize(serializer)
}

/// The other way of [`serialize`].
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    Text::deserialize(deserializer).map(Vec::from)
}

/// The same for a field that may be missing.
pub mod option {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Text};

    pub fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let text = bytes.as_deref().map(Text::from);
        text.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<Text>::deserialize(deserializer)?.map(Vec::from))
    }
}

/// The same for a map from bytes to bytes, as a list of pairs.
pub mod map {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Text};
    use std::collections::BTreeMap;

    pub fn serialize<S: Serializer>(
        map: &BTreeMap<Vec<u8>, Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let pairs: Vec<(Text, Text)> = map
            .iter()
            .map(|(name, value)| (Text::from(&name[..]), Text::from(&value[..])))
            .collect();
        pairs.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, D::Error> {
        let pairs = Vec::<(Text, Text)>::deserialize(deserializer)?;
        Ok(pairs
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect())
    }
}
