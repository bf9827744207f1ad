//! ONNX files: the part of the format that ensembles of trees use (`onnx.proto3` of the ONNX project, field numbers as there).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use prost::Message;

use crate::error::{Error, Result};

/// The largest file that is read: a forest of a thousand trees is a tenth of it.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// `ModelProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Model {
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<Graph>,
    #[prost(message, repeated, tag = "14")]
    pub(crate) metadata_props: Vec<Entry>,
}

/// `StringStringEntryProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `GraphProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<Node>,
}

/// `NodeProto`: one operator.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<Attribute>,
}

/// `AttributeProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int64, tag = "3")]
    pub(crate) i: i64,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) s: Vec<u8>,
    #[prost(float, repeated, tag = "7")]
    pub(crate) floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub(crate) strings: Vec<Vec<u8>>,
}

/// The bytes of a model's file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let fail = |source| Error::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that is too long, whatever its length was a moment ago.
    File::open(path).map_err(fail)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::damaged(path, format!("longer than the {FILE_BYTES_MAX} bytes that a model may have")));
    }
    Ok(bytes)
}

impl Model {
    /// A model out of bytes, or what is wrong with them.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        Self::decode(bytes).map_err(|error| format!("not an ONNX model: {error}"))
    }

    /// The value of a key of the metadata.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata_props.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
    }
}

impl Node {
    fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// An attribute's whole numbers; none where it is missing.
    pub(crate) fn ints(&self, name: &str) -> &[i64] {
        self.attribute(name).map_or(&[], |attribute| &attribute.ints)
    }

    /// An attribute's numbers; none where it is missing.
    pub(crate) fn floats(&self, name: &str) -> &[f32] {
        self.attribute(name).map_or(&[], |attribute| &attribute.floats)
    }

    /// An attribute's words; none where it is missing.
    pub(crate) fn strings(&self, name: &str) -> &[Vec<u8>] {
        self.attribute(name).map_or(&[], |attribute| &attribute.strings)
    }

    /// An attribute's one word.
    pub(crate) fn string(&self, name: &str) -> Option<&[u8]> {
        self.attribute(name).map(|attribute| attribute.s.as_slice())
    }

    /// An attribute's one whole number.
    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name).map(|attribute| attribute.i)
    }

    /// Whether there is such an attribute.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.attribute(name).is_some()
    }
}
