//! Keys, comparisons and transactions.

/// A key and its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdKeyValue {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// The revision at which the key was created.
    pub create_revision: u64,
    /// The revision at which it was changed last.
    pub mod_revision: u64,
    /// The lease that it belongs to; 0: none.
    pub lease: i64,
}

/// The keys of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdRange {
    /// The store's revision when they were read.
    pub revision: u64,
    pub pairs: Vec<EtcdKeyValue>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdCompare {
    /// The key's create revision is this; 0: the key does not exist.
    CreateRevision(String, u64),
    /// The key's mod revision is this; 0: the key does not exist.
    ModRevision(String, u64),
    /// The key has this value.
    Value(String, Vec<u8>),
}

/// A step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdOp {
    Get(String),
    /// `lease` 0: none.
    Put {
        key: String,
        value: Vec<u8>,
        lease: i64,
    },
    Delete(String),
}

/// A transaction: `success` if all comparisons are true, otherwise `failure`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTxn {
    pub compare: Vec<EtcdCompare>,
    pub success: Vec<EtcdOp>,
    pub failure: Vec<EtcdOp>,
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTxnResult {
    /// Whether all comparisons were true.
    pub succeeded: bool,
    /// The store's revision after the transaction. It is the revision of what it has written.
    pub revision: u64,
    /// The keys that each step has read. Empty for puts and deletions.
    pub reads: Vec<Vec<EtcdKeyValue>>,
}
