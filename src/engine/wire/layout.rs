//! The messages of each method in each release, and which releases a message can come from.

use std::sync::OnceLock;

use crate::method::Method;
use crate::pack::{
    self, DecodeError, DecodeFault, LengthWidth, PayloadReader, PayloadWriter, TypeInfo, Wire, WriteLiteral, md5_u32,
};
use mcctl_base::upstream::{Release, Releases};

/// The class whose member functions upstream registers. It is part of every method id.
const CLASS: &str = "mooncake::WrappedMasterService::";

/// The types of a method's messages in one release.
#[derive(Debug)]
pub struct MethodLayout {
    release: Release,
    /// `None` without arguments: such a request has no body.
    request: Option<TypeInfo>,
    /// The type as a tuple: a peer may wrap a single argument in a tuple.
    request_wrapped: Option<TypeInfo>,
    response: TypeInfo,
}

impl MethodLayout {
    /// The layout in `release` of a method that returns `R`. Each argument has the release that
    /// added it.
    pub(crate) fn new<R: for<'a> Wire<'a>>(release: Release, arguments: &[(Release, WriteLiteral)]) -> MethodLayout {
        let present = arguments.iter().filter(|(since, _)| release >= *since);
        let present: Vec<WriteLiteral> = present.map(|(_, literal)| *literal).collect();
        let request = (!present.is_empty()).then(|| TypeInfo::from_parts(release, &present));
        MethodLayout {
            release,
            request_wrapped: request.as_ref().filter(|_| present.len() == 1).map(TypeInfo::wrapped),
            request,
            response: TypeInfo::of::<R>(release),
        }
    }

    /// The release of these messages.
    pub fn release(&self) -> Release {
        self.release
    }

    /// The type of the request body; `None` for a method without arguments, which has no body.
    pub fn request(&self) -> Option<&TypeInfo> {
        self.request.as_ref()
    }

    /// The type of the response body.
    pub fn response(&self) -> &TypeInfo {
        &self.response
    }

    /// Opens a reader for the request's arguments. For a method without arguments, any body is
    /// ignored, as in upstream.
    pub(crate) fn open_request<'a>(&self, body: &'a [u8]) -> Result<PayloadReader<'a>, DecodeError> {
        let Some(info) = &self.request else {
            return Ok(PayloadReader::new(&[], LengthWidth::W1, self.release));
        };
        pack::open(body, info).or_else(|error| match &self.request_wrapped {
            Some(wrapped) => pack::open(body, wrapped).map_err(|_| error),
            None => Err(error),
        })
    }

    /// Appends a request whose arguments `put` writes.
    pub(crate) fn encode_request(
        &self,
        out: &mut Vec<u8>,
        literal: bool,
        longest: usize,
        put: impl FnOnce(&mut PayloadWriter<'_>),
    ) {
        if let Some(info) = &self.request {
            pack::encode(out, info, literal, longest, put);
        }
    }

    /// The hashes that a request can begin with.
    fn request_hashes(&self) -> impl Iterator<Item = u32> {
        self.request.iter().chain(&self.request_wrapped).map(TypeInfo::hash)
    }
}

/// A method in all releases.
struct MethodReleases {
    id: u32,
    /// By release; `None` in those that lack the method.
    layouts: Vec<Option<MethodLayout>>,
    /// Releases whose request has no body.
    bodiless: Releases,
    /// The releases of each request and response hash.
    requests: Vec<(u32, Releases)>,
    responses: Vec<(u32, Releases)>,
}

impl MethodReleases {
    fn new(method: Method) -> MethodReleases {
        let layout = |release: &Release| (*release >= method.since()).then(|| method.describe(*release));
        let layouts: Vec<Option<MethodLayout>> = Release::ALL.iter().map(layout).collect();
        let mut found = MethodReleases {
            id: md5_u32(format!("{CLASS}{}", method.name()).as_bytes()),
            bodiless: Releases::NONE,
            requests: Vec::new(),
            responses: Vec::new(),
            layouts: Vec::new(),
        };
        for layout in layouts.iter().flatten() {
            let release = Releases::only(layout.release);
            if layout.request.is_none() {
                found.bodiless = found.bodiless.or(release);
            }
            layout.request_hashes().for_each(|hash| add(&mut found.requests, hash, release));
            add(&mut found.responses, layout.response.hash(), release);
        }
        MethodReleases { layouts, ..found }
    }
}

fn add(hashes: &mut Vec<(u32, Releases)>, hash: u32, release: Releases) {
    match hashes.iter_mut().find(|(known, _)| *known == hash) {
        Some((_, releases)) => *releases = releases.or(release),
        None => hashes.push((hash, release)),
    }
}

fn releases_of(hashes: &[(u32, Releases)], hash: u32) -> Releases {
    hashes.iter().find(|(known, _)| *known == hash).map_or(Releases::NONE, |(_, releases)| *releases)
}

fn methods() -> &'static [MethodReleases] {
    static ALL: OnceLock<Vec<MethodReleases>> = OnceLock::new();
    ALL.get_or_init(|| Method::ALL.iter().map(|method| MethodReleases::new(*method)).collect())
}

impl Method {
    fn in_all_releases(self) -> &'static MethodReleases {
        &methods()[self as usize]
    }

    /// The method's id in requests: derived from the MD5 of its qualified name.
    pub fn id(self) -> u32 {
        self.in_all_releases().id
    }

    /// Returns the method with this id.
    pub fn from_id(id: u32) -> Option<Method> {
        static BY_ID: OnceLock<Vec<(u32, Method)>> = OnceLock::new();
        let by_id = BY_ID.get_or_init(|| {
            let mut pairs: Vec<_> = Method::ALL.iter().map(|method| (method.id(), *method)).collect();
            pairs.sort_unstable();
            pairs
        });
        by_id.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| by_id[at].1)
    }

    /// The method's messages in `release`; `None` if it lacks the method.
    #[inline]
    pub fn layout(self, release: Release) -> Option<&'static MethodLayout> {
        self.in_all_releases().layouts[release as usize].as_ref()
    }

    /// The method's messages in `release`.
    ///
    /// # Errors
    /// The release lacks the method.
    pub fn require_layout(self, release: Release) -> Result<&'static MethodLayout, DecodeError> {
        self.layout(release).ok_or_else(|| DecodeFault::NoMethod { method: self.name(), release }.into())
    }

    /// The releases whose clients send this request. A method that has arguments only in newer
    /// releases has an empty request in the others; a body of an unknown type is of none.
    pub fn releases_of_request(self, body: &[u8]) -> Releases {
        let all = self.in_all_releases();
        match pack::type_hash(body) {
            Some(hash) if !all.requests.is_empty() => releases_of(&all.requests, hash),
            _ if body.is_empty() || all.requests.is_empty() => all.bodiless,
            _ => Releases::NONE,
        }
    }

    /// The releases whose masters send this response.
    pub fn releases_of_response(self, body: &[u8]) -> Releases {
        pack::type_hash(body).map_or(Releases::NONE, |hash| releases_of(&self.in_all_releases().responses, hash))
    }

    /// The releases whose request has the same type as in `release`.
    pub fn releases_with_request_of(self, release: Release) -> Releases {
        let all = self.in_all_releases();
        match self.layout(release).map(|layout| &layout.request) {
            Some(Some(request)) => releases_of(&all.requests, request.hash()),
            Some(None) => all.bodiless,
            None => Releases::NONE,
        }
    }

    /// The releases whose response has the same type as in `release`; none if it lacks the method.
    pub fn releases_with_response_of(self, release: Release) -> Releases {
        let hash = self.layout(release).map(|layout| layout.response.hash());
        hash.map_or(Releases::NONE, |hash| releases_of(&self.in_all_releases().responses, hash))
    }

    /// The type of a response to a request with this layout. If the response is not of its release,
    /// but of one that the same request can be sent to, its type is that of this release.
    pub(crate) fn response_type(self, layout: &'static MethodLayout, body: &[u8]) -> &'static TypeInfo {
        if pack::type_hash(body) == Some(layout.response.hash()) {
            return &layout.response;
        }
        let request = layout.request.as_ref().map(TypeInfo::hash);
        let same = |release: &Release| {
            self.layout(*release).is_some_and(|other| other.request.as_ref().map(TypeInfo::hash) == request)
        };
        let sent = self.releases_of_response(body).iter().rev().find(same);
        sent.and_then(|release| self.layout(release)).map_or(&layout.response, |other| &other.response)
    }
}
