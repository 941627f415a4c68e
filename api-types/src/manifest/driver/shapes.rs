//! Values that job files write in several shapes: a block as a map or as a list of maps, a map with scalars of any type, a list as a
//! single text.
//!
//! Nomad's parser turns every block of a task's `config` into a list, so the same block arrives as a list from servers and from JSON
//! job files, and as a map from YAML.

use core::fmt;
use std_alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor},
};

/// A block that is written at most once: a map, or a list of one map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Block<T>(pub T);

impl<T: Serialize> Serialize for Block<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: DeserializeOwned + Default> Deserialize<'de> for Block<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes<T>(core::marker::PhantomData<T>);
        impl<'de, T: DeserializeOwned + Default> Visitor<'de> for Shapes<T> {
            type Value = Block<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Block<T>, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Block)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Block<T>, A::Error> {
                let block = items.next_element::<T>()?.map(Block).unwrap_or_default();
                match items.next_element::<de::IgnoredAny>()? {
                    Some(_) => Err(de::Error::custom("the block is written twice")),
                    None => Ok(block),
                }
            }
        }
        deserializer.deserialize_any(Shapes(core::marker::PhantomData))
    }
}

/// Texts by name. Numbers and booleans need no quotes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Pairs(pub BTreeMap<String, String>);

impl Pairs {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Scalar>()? {
                    pairs.insert(name, value.0);
                }
                Ok(Pairs(pairs))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Pairs, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some(more) = items.next_element::<BTreeMap<String, Scalar>>()? {
                    pairs.extend(more.into_iter().map(|(name, value)| (name, value.0)));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}

/// A list of texts; a single text is a list of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct OneOrMany(pub Vec<String>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Many(Vec<Scalar>),
            One(Scalar),
        }
        Ok(Self(match Form::deserialize(deserializer)? {
            Form::Many(texts) => texts.into_iter().map(|text| text.0).collect(),
            Form::One(text) => Vec::from([text.0]),
        }))
    }
}

/// A text that may be written as a number or a boolean.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number or a boolean")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.into()))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(format!("{value}")))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(format!("{value}")))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(format!("{value}")))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(format!("{value}")))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(feature = "schema")]
mod schema {
    use std_alloc::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{super::super::Text, Block, OneOrMany, Pairs};

    impl<T: JsonSchema> JsonSchema for Block<T> {
        fn schema_name() -> Cow<'static, str> {
            std_alloc::format!("{}Block", T::schema_name()).into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let block = generator.subschema_for::<T>();
            json_schema!({ "anyOf": [block, { "type": "array", "items": block, "maxItems": 1 }] })
        }
    }

    impl JsonSchema for Pairs {
        fn schema_name() -> Cow<'static, str> {
            "Pairs".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let text = generator.subschema_for::<Text>();
            let map = json_schema!({ "type": "object", "additionalProperties": text });
            json_schema!({ "anyOf": [map, { "type": "array", "items": map }] })
        }
    }

    impl JsonSchema for OneOrMany {
        fn schema_name() -> Cow<'static, str> {
            "OneOrMany".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let text = generator.subschema_for::<Text>();
            json_schema!({ "anyOf": [text, { "type": "array", "items": text }] })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Inner {
        on: bool,
    }

    #[test]
    fn blocks_are_maps_or_lists() {
        for text in ["{\"on\": true}", "[{\"on\": true}]"] {
            assert_eq!(serde_json::from_str::<Block<Inner>>(text).unwrap(), Block(Inner { on: true }));
        }
        let twice = serde_json::from_str::<Block<Inner>>("[{}, {}]").unwrap_err();
        assert!(format!("{twice}").contains("written twice"));
        for text in ["{\"a\": 1, \"b\": \"x\"}", "[{\"a\": 1}, {\"b\": \"x\"}]"] {
            let pairs = serde_json::from_str::<Pairs>(text).unwrap();
            assert_eq!((&*pairs.0["a"], &*pairs.0["b"]), ("1", "x"));
        }
        assert_eq!(serde_json::from_str::<OneOrMany>("\"a\"").unwrap().0, ["a"]);
        assert_eq!(serde_json::from_str::<OneOrMany>("[\"a\", 1]").unwrap().0, ["a", "1"]);
    }
}
