//! The parts of the engine that every other part may use. Used through `mcctl::engine`.

#[path = "../.."]
pub mod engine {
    pub mod base;
    pub mod env;
    pub mod etcd;
    pub mod http;
    pub mod journal;
    pub mod sys;
    pub mod upstream;
}
