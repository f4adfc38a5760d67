//! Safe wrappers for every call of libpq, and for how memory is allocated. No other module of the
//! workspace calls C.
//!
//! Why the wrappers are sound, beside each call's own comment:
//! - A [`Handle`] owns its `PGconn`, an [`Answer`] its `PGresult`, a [`CopyData`] its
//!   buffer. Each is created once, and freed once, when its owner is dropped.
//! - libpq is thread-safe as long as two threads do not use one connection at the same time.
//!   So the types are `Send`, and `Handle` and `Answer` are not `Sync`.
//! - A string that libpq returns lives as long as its connection or result, or until the next
//!   call on it. So it is copied at once.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use pq_sys as pq;

use crate::ClientError;
use crate::error::{first_lines, one_line};
use crate::request::Request;

/// Pieces of memory of this size or more go back to the system when they are freed, and so does as
/// much at the end of what a thread has.
const RETURNED: c_int = 4 * 1024 * 1024;

/// Lets the memory of large values, libpq's and ours, go back to the system as soon as it is freed. By
/// itself glibc keeps for each thread as much as the largest value had that was freed before.
/// To be called before there are other threads.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        const M_TRIM_THRESHOLD: c_int = -1;
        const M_MMAP_THRESHOLD: c_int = -3;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        // SAFETY: it takes two numbers, and sets one of glibc's own under its lock. A value that it
        // does not take leaves all as it was.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, RETURNED);
            mallopt(M_TRIM_THRESHOLD, RETURNED);
        }
    }
}

/// An option of a connection.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub name: String,
    pub value: Option<String>,
    /// A password, or as secret as one.
    pub secret: bool,
}

/// Options that are never shown, whatever this version of libpq says about them.
const SECRETS: [&str; 5] = [
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
];

/// True if an option must not be shown. `shown` is libpq's `dispchar`, `*` for a password.
fn is_secret(name: &str, shown: Option<&str>) -> bool {
    shown == Some("*") || SECRETS.contains(&name)
}

/// The text of a C string; None for null.
///
/// # Safety
/// `text` is null or points to a string that stays as it is during the call.
unsafe fn text(text: *const c_char) -> Option<String> {
    (!text.is_null()).then(|| {
        // SAFETY: it is a string, as the caller promises.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    })
}

/// Copies and frees an array of options.
///
/// # Safety
/// `options` is null or came from libpq, which ends it with a null keyword, and is not used
/// afterwards.
unsafe fn settings(options: *mut pq::PQconninfoOption) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut next = options;
    // SAFETY: the array is read up to its last entry, the one without a keyword; its fields
    // are null or strings; it is freed once.
    unsafe {
        while let Some(option) = next.as_ref().filter(|option| !option.keyword.is_null()) {
            let name = text(option.keyword).unwrap_or_default();
            settings.push(Setting {
                value: text(option.val),
                secret: is_secret(&name, text(option.dispchar).as_deref()),
                name,
            });
            next = next.add(1);
        }
        pq::PQconninfoFree(options);
    }
    settings
}

/// The options of a conninfo, without defaults. An error is libpq's message, which may quote
/// parts of the conninfo.
pub(crate) fn parse(conninfo: &CStr) -> Result<Vec<Setting>, String> {
    let mut message = ptr::null_mut();
    // SAFETY: a string, and a place for an error's message; what is returned is freed below.
    let options = unsafe { pq::PQconninfoParse(conninfo.as_ptr(), &mut message) };
    if !options.is_null() {
        // SAFETY: it came from libpq just now.
        return Ok(unsafe { settings(options) });
    }
    // SAFETY: null or a string that libpq allocated; it is freed once, here.
    let words = unsafe {
        let words = text(message);
        pq::PQfreemem(message.cast());
        words
    };
    Err(one_line(
        &words.unwrap_or_else(|| "out of memory".to_owned()),
    ))
}

/// Options in libpq's form: two arrays that end with null.
struct Parameters<'a> {
    names: Vec<*const c_char>,
    values: Vec<*const c_char>,
    /// The strings that the pointers point to.
    _owner: &'a [(CString, CString)],
}

impl<'a> Parameters<'a> {
    fn new(parameters: &'a [(CString, CString)]) -> Self {
        let ended = |pointers: &mut dyn Iterator<Item = *const c_char>| {
            pointers.chain([ptr::null()]).collect()
        };
        Self {
            names: ended(&mut parameters.iter().map(|(name, _)| name.as_ptr())),
            values: ended(&mut parameters.iter().map(|(_, value)| value.as_ptr())),
            _owner: parameters,
        }
    }
}

/// All options that a connection with these would use, with variables, service files and
/// defaults. The caller sets `hostaddr` to what is no address, so that libpq does not connect.
pub(crate) fn resolve(parameters: &[(CString, CString)]) -> Option<Vec<Setting>> {
    let parameters = Parameters::new(parameters);
    // SAFETY: two arrays of strings that end with null; libpq copies what it needs.
    let conn = unsafe {
        pq::PQconnectStartParams(parameters.names.as_ptr(), parameters.values.as_ptr(), 0)
    };
    let connection = Handle(NonNull::new(conn)?, Box::default());
    Some(connection.settings())
}

/// Counts notices and drops them: libpq would print them.
unsafe extern "C" fn count_notice(count: *mut c_void, _: *const c_char) {
    // SAFETY: null, or the count of the connection's own handle, which outlives the connection.
    if let Some(count) = unsafe { count.cast::<AtomicU32>().as_ref() } {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection in nonblocking mode, and how many notices it has had: once it is connected, only
/// callers that poll wait.
pub(crate) struct Handle(NonNull<pq::PGconn>, Box<AtomicU32>);

// SAFETY: libpq keeps no thread-local state about a connection.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nothing borrows it any more.
        unsafe { pq::PQfinish(self.0.as_ptr()) }
    }
}

/// How a server answers who wants a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greeting {
    /// Sessions are taken, though perhaps not this one: a wrong password, too many connections.
    Open,
    /// No session is taken at present: the server starts, or waits for its sessions to end.
    Closed,
    Silent,
}

impl Handle {
    /// Connects, and blocks until that is done. An error is libpq's message in one line.
    pub fn connect(parameters: &[(CString, CString)]) -> Result<Self, String> {
        let parameters = Parameters::new(parameters);
        // SAFETY: two arrays of strings that end with null; libpq copies what it needs.
        let conn = unsafe {
            pq::PQconnectdbParams(parameters.names.as_ptr(), parameters.values.as_ptr(), 0)
        };
        let conn = NonNull::new(conn).ok_or_else(|| "out of memory".to_owned())?;
        let connection = Self(conn, Box::default());
        let count = ptr::from_ref::<AtomicU32>(&connection.1).cast_mut().cast();
        // SAFETY: a live connection, a function that is always there, and a count that is freed
        // after the connection.
        unsafe {
            pq::PQsetNoticeProcessor(connection.0.as_ptr(), Some(count_notice), count);
        }
        // SAFETY: a live connection.
        let ready = unsafe {
            pq::PQstatus(connection.0.as_ptr()) == pq::ConnStatusType::CONNECTION_OK
                && pq::PQsetnonblocking(connection.0.as_ptr(), 1) == 0
        };
        match ready {
            true => Ok(connection),
            false => Err(connection.message()),
        }
    }

    /// How a server answers who wants a session. Blocks as [`Handle::connect`] does.
    pub fn greeting(parameters: &[(CString, CString)]) -> Greeting {
        let parameters = Parameters::new(parameters);
        // SAFETY: two arrays of strings that end with null, which libpq only reads.
        let found =
            unsafe { pq::PQpingParams(parameters.names.as_ptr(), parameters.values.as_ptr(), 0) };
        match found {
            pq::PGPing::PQPING_OK => Greeting::Open,
            pq::PGPing::PQPING_REJECT => Greeting::Closed,
            _ => Greeting::Silent,
        }
    }

    /// The last error, in one line.
    pub fn message(&self) -> String {
        // SAFETY: a live connection; the string is copied before the next call.
        let words = unsafe { text(pq::PQerrorMessage(self.0.as_ptr())) };
        match one_line(&words.unwrap_or_default()) {
            empty if empty.is_empty() => "no reason given".to_owned(),
            words => words,
        }
    }

    /// All options of the connection, with the values in use.
    pub fn settings(&self) -> Vec<Setting> {
        // SAFETY: a live connection; the array is used only there.
        unsafe { settings(pq::PQconninfo(self.0.as_ptr())) }
    }

    /// How many notices have arrived.
    pub fn notices(&self) -> u32 {
        self.1.load(Ordering::Relaxed)
    }

    /// Gives libpq a request; [`Handle::flush`] sends it. Its rows arrive one by one.
    pub fn send(&mut self, request: &Request) -> Result<(), String> {
        let sent = self.queue(request)?;
        // libpq refuses single-row mode for a statement that is only prepared.
        let rows = !matches!(request, Request::Prepare { .. });
        // SAFETY: a live connection. Single-row mode may be set right after sending.
        let sent = sent && (!rows || unsafe { pq::PQsetSingleRowMode(self.0.as_ptr()) == 1 });
        self.done(sent)
    }

    /// Gives libpq a request of a pipeline; [`Handle::flush`] sends it.
    pub fn send_in_pipeline(&mut self, request: &Request) -> Result<(), String> {
        let sent = self.queue(request)?;
        self.done(sent)
    }

    fn queue(&mut self, request: &Request) -> Result<bool, String> {
        let sent = match request {
            Request::Simple(sql) => {
                // SAFETY: a live connection and a string, which libpq copies.
                unsafe { pq::PQsendQuery(self.0.as_ptr(), sql.as_ptr()) == 1 }
            }
            Request::Prepare { name, sql } => {
                // SAFETY: a live connection and strings, which libpq copies; no types are
                // given, so none are read.
                let sent = unsafe {
                    pq::PQsendPrepare(self.0.as_ptr(), name.as_ptr(), sql.as_ptr(), 0, ptr::null())
                };
                sent == 1
            }
            Request::Parameters { sql, values } => {
                self.send_values(values, |conn, count, values| {
                    // SAFETY: a live connection, a string, and an array of `count` strings or
                    // nulls, all of which libpq copies; without types, lengths and formats all
                    // are text.
                    unsafe {
                        pq::PQsendQueryParams(
                            conn,
                            sql.as_ptr(),
                            count,
                            ptr::null(),
                            values,
                            ptr::null(),
                            ptr::null(),
                            0,
                        )
                    }
                })?
            }
            Request::Prepared { name, values } => {
                self.send_values(values, |conn, count, values| {
                    // SAFETY: the same.
                    unsafe {
                        pq::PQsendQueryPrepared(
                            conn,
                            name.as_ptr(),
                            count,
                            values,
                            ptr::null(),
                            ptr::null(),
                            0,
                        )
                    }
                })?
            }
            Request::Binary { name, values } => self.send_binary(name, values)?,
        };
        Ok(sent)
    }

    /// Lets further requests be sent before earlier ones are answered.
    pub fn enter_pipeline(&mut self) -> Result<(), String> {
        // SAFETY: a live connection.
        let entered = unsafe { pq::PQenterPipelineMode(self.0.as_ptr()) };
        self.done(entered == 1)
    }

    /// Ends the pipeline's statements: the server answers all that it has.
    pub fn sync_pipeline(&mut self) -> Result<(), String> {
        // SAFETY: a live connection.
        let sent = unsafe { pq::PQpipelineSync(self.0.as_ptr()) };
        self.done(sent == 1)
    }

    /// Asks the server to send the answers that it has, without ending the pipeline's statements.
    pub fn ask_for_answers(&mut self) -> Result<(), String> {
        // SAFETY: a live connection.
        let sent = unsafe { pq::PQsendFlushRequest(self.0.as_ptr()) };
        self.done(sent == 1)
    }

    /// Goes back to one request at a time. All answers must have been read.
    pub fn exit_pipeline(&mut self) -> Result<(), String> {
        // SAFETY: a live connection.
        let left = unsafe { pq::PQexitPipelineMode(self.0.as_ptr()) };
        self.done(left == 1)
    }

    /// Calls `send` with the values in libpq's form: a null pointer is a null value.
    fn send_values(
        &mut self,
        values: &[Option<CString>],
        send: impl FnOnce(*mut pq::PGconn, c_int, *const *const c_char) -> c_int,
    ) -> Result<bool, String> {
        let count = c_int::try_from(values.len()).map_err(|_| "too many parameters".to_owned())?;
        let pointers: Vec<_> = values
            .iter()
            .map(|value| value.as_ref().map_or(ptr::null(), |value| value.as_ptr()))
            .collect();
        Ok(send(self.0.as_ptr(), count, pointers.as_ptr()) == 1)
    }

    fn send_binary(&mut self, name: &CStr, values: &[Vec<u8>]) -> Result<bool, String> {
        let length = |length: usize| {
            c_int::try_from(length).map_err(|_| "too many or too large parameters".to_owned())
        };
        let count = length(values.len())?;
        let lengths = values.iter().map(|value| length(value.len()));
        let lengths = lengths.collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<_> = values.iter().map(|value| value.as_ptr().cast()).collect();
        let formats = vec![1; values.len()];
        // SAFETY: a live connection, a string, and arrays of `count` values, their lengths and their
        // formats, all of which libpq copies.
        let sent = unsafe {
            pq::PQsendQueryPrepared(
                self.0.as_ptr(),
                name.as_ptr(),
                count,
                pointers.as_ptr(),
                lengths.as_ptr(),
                formats.as_ptr(),
                0,
            )
        };
        Ok(sent == 1)
    }

    /// Sends what can be sent without waiting. True if some of it is left.
    pub fn flush(&mut self) -> Result<bool, String> {
        // SAFETY: a live connection.
        match unsafe { pq::PQflush(self.0.as_ptr()) } {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.message()),
        }
    }

    /// Reads what has arrived, without waiting.
    pub fn consume_input(&mut self) -> Result<(), String> {
        // SAFETY: a live connection.
        let taken = unsafe { pq::PQconsumeInput(self.0.as_ptr()) };
        self.done(taken == 1)
    }

    /// True if [`Handle::next_answer`] would wait.
    pub fn is_busy(&mut self) -> bool {
        // SAFETY: a live connection.
        unsafe { pq::PQisBusy(self.0.as_ptr()) == 1 }
    }

    /// The next result of a command; None once there are no more.
    pub fn next_answer(&mut self) -> Option<Answer> {
        // SAFETY: a live connection; the result is owned by the answer.
        NonNull::new(unsafe { pq::PQgetResult(self.0.as_ptr()) }).map(Answer)
    }

    /// The next message of a copy, if it has arrived.
    pub fn get_copy_data(&mut self) -> Copied {
        let mut buffer: *mut c_char = ptr::null_mut();
        // SAFETY: a live connection and a place for a pointer, which is null or a buffer of
        // the returned length that is ours from now on.
        let length = unsafe { pq::PQgetCopyData(self.0.as_ptr(), &mut buffer, 1) };
        match (length, NonNull::new(buffer.cast::<u8>())) {
            (0, _) => Copied::NotYet,
            (-1, _) => Copied::Done,
            (length, Some(start)) if length > 0 => Copied::Data(CopyData {
                start,
                length: length.unsigned_abs() as usize,
            }),
            _ => Copied::Failed(self.message()),
        }
    }

    /// Gives libpq one message of a copy. False if libpq has no room for it.
    pub fn put_copy_data(&mut self, data: &[u8]) -> Result<bool, String> {
        let length = c_int::try_from(data.len()).map_err(|_| "message too long".to_owned())?;
        // SAFETY: a live connection, and a buffer of that length which libpq copies.
        let put = unsafe { pq::PQputCopyData(self.0.as_ptr(), data.as_ptr().cast(), length) };
        self.room(put)
    }

    /// Ends the client's side of a copy, with a reason if the server must not keep what was
    /// copied. False if libpq has no room for the message.
    pub fn put_copy_end(&mut self, failed: Option<&CStr>) -> Result<bool, String> {
        let reason = failed.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: a live connection, and null or a string, which libpq copies.
        let put = unsafe { pq::PQputCopyEnd(self.0.as_ptr(), reason) };
        self.room(put)
    }

    /// Makes a canceller for requests of this connection.
    pub fn canceller(&self) -> Result<Canceller, String> {
        // SAFETY: a live connection, which libpq only reads; the object is freed once, by the
        // value that owns it.
        let cancel = unsafe { pq::PQgetCancel(self.0.as_ptr()) };
        NonNull::new(cancel)
            .map(Canceller)
            .ok_or_else(|| "it is closed".to_owned())
    }

    /// The connection is broken, as far as libpq has noticed.
    pub fn is_closed(&self) -> bool {
        // SAFETY: a live connection.
        unsafe { pq::PQstatus(self.0.as_ptr()) != pq::ConnStatusType::CONNECTION_OK }
    }

    /// The socket; None once the connection is closed.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: a live connection.
        let number = unsafe { pq::PQsocket(self.0.as_ptr()) };
        // SAFETY: libpq changes or closes it only in calls that need the connection mutably,
        // which the borrow rules out.
        (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// True if the connection is encrypted by TLS.
    pub fn tls(&self) -> bool {
        // SAFETY: a live connection.
        unsafe { pq::PQsslInUse(self.0.as_ptr()) == 1 }
    }

    /// The server's version as `server_version_num` gives it, e.g. 150020.
    pub fn server_version(&self) -> u32 {
        // SAFETY: a live connection.
        let number = unsafe { pq::PQserverVersion(self.0.as_ptr()) };
        number.try_into().unwrap_or(0)
    }

    /// The process id of the server's backend for this connection.
    pub fn backend_pid(&self) -> u32 {
        // SAFETY: a live connection.
        let number = unsafe { pq::PQbackendPID(self.0.as_ptr()) };
        number.try_into().unwrap_or(0)
    }

    /// The value of a setting that the server reports by itself.
    pub fn parameter(&self, name: &CStr) -> Option<String> {
        // SAFETY: a live connection and a string; what is returned is copied.
        unsafe { text(pq::PQparameterStatus(self.0.as_ptr(), name.as_ptr())) }
    }

    /// The host in use, or the folder of the socket.
    pub fn host(&self) -> String {
        // SAFETY: a live connection; the string is copied.
        unsafe { text(pq::PQhost(self.0.as_ptr())) }.unwrap_or_default()
    }

    /// The address in use; empty for a Unix socket.
    pub fn hostaddr(&self) -> String {
        // SAFETY: a live connection; the string is copied.
        unsafe { text(pq::PQhostaddr(self.0.as_ptr())) }.unwrap_or_default()
    }

    pub fn port(&self) -> String {
        // SAFETY: a live connection; the string is copied.
        unsafe { text(pq::PQport(self.0.as_ptr())) }.unwrap_or_default()
    }

    pub fn database(&self) -> String {
        // SAFETY: a live connection; the string is copied.
        unsafe { text(pq::PQdb(self.0.as_ptr())) }.unwrap_or_default()
    }

    pub fn user(&self) -> String {
        // SAFETY: a live connection; the string is copied.
        unsafe { text(pq::PQuser(self.0.as_ptr())) }.unwrap_or_default()
    }

    fn done(&self, well: bool) -> Result<(), String> {
        match well {
            true => Ok(()),
            false => Err(self.message()),
        }
    }

    fn room(&self, put: c_int) -> Result<bool, String> {
        match put {
            1 => Ok(true),
            0 => Ok(false),
            _ => Err(self.message()),
        }
    }
}

/// Cancels the statement that runs on a connection. Any thread may use it, even after the
/// connection has ended.
pub struct Canceller(NonNull<pq::PGcancel>);

// SAFETY: libpq only reads it, and documents that any thread may use it.
unsafe impl Send for Canceller {}
// SAFETY: the same.
unsafe impl Sync for Canceller {}

impl Drop for Canceller {
    fn drop(&mut self) {
        // SAFETY: it is ours; freed once.
        unsafe { pq::PQfreeCancel(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for Canceller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Canceller").finish_non_exhaustive()
    }
}

impl Canceller {
    /// Asks the server, over a new connection, to cancel the statement that runs. If none runs,
    /// nothing is cancelled. Returns before the statement has ended.
    pub fn cancel(&self) -> crate::Result<()> {
        const MOST: usize = 256;
        let mut words: [c_char; MOST] = [0; MOST];
        // SAFETY: a live cancel object; the buffer has the length that is stated, and libpq
        // ends what it writes there with a NUL.
        let (done, words) = unsafe {
            let done = pq::PQcancel(self.0.as_ptr(), words.as_mut_ptr(), MOST as c_int);
            (done, text(words.as_ptr()))
        };
        match done {
            1 => Ok(()),
            _ => Err(ClientError::Connect(one_line(&words.unwrap_or_default()))),
        }
    }
}

/// The next thing in a copy.
pub(crate) enum Copied {
    Data(CopyData),
    NotYet,
    /// The server has ended its side, or reports an error: the next answer says which.
    Done,
    Failed(String),
}

/// The content of one message of a copy, in a buffer that libpq allocated.
pub struct CopyData {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a plain buffer that only this value refers to, and that nothing changes.
unsafe impl Send for CopyData {}
// SAFETY: the same; shared references only read.
unsafe impl Sync for CopyData {}

impl Deref for CopyData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: libpq made a buffer of that length, which lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl std::fmt::Debug for CopyData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CopyData of {} bytes", self.length)
    }
}

impl Drop for CopyData {
    fn drop(&mut self) {
        // SAFETY: libpq made it; it is freed once.
        unsafe { pq::PQfreemem(self.start.as_ptr().cast()) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    /// One row (single-row mode).
    Row,
    /// The end of a statement's rows.
    Rows,
    /// A statement without rows is done.
    Command,
    /// A copy in both directions begins.
    CopyBoth,
    /// A copy in one direction begins; `true` if the client sends it.
    CopyOne(bool),
    Error,
    /// The server has answered everything of a pipeline.
    Sync,
    /// A statement of a pipeline that the server skipped after an error.
    Skipped,
    Other,
}

/// An error as the server reports it.
#[derive(Debug)]
pub(crate) struct Report {
    pub sqlstate: String,
    pub message: String,
    pub detail: Option<String>,
    pub table: Option<(String, String)>,
    pub hint: Option<String>,
    pub context: Option<String>,
}

/// One result of a command.
pub(crate) struct Answer(NonNull<pq::PGresult>);

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: it is ours; freed once.
        unsafe { pq::PQclear(self.0.as_ptr()) }
    }
}

impl Answer {
    pub fn kind(&self) -> AnswerKind {
        // SAFETY: a live result.
        match unsafe { pq::PQresultStatus(self.0.as_ptr()) } {
            pq::ExecStatusType::PGRES_SINGLE_TUPLE => AnswerKind::Row,
            pq::ExecStatusType::PGRES_TUPLES_OK => AnswerKind::Rows,
            pq::ExecStatusType::PGRES_COMMAND_OK | pq::ExecStatusType::PGRES_EMPTY_QUERY => {
                AnswerKind::Command
            }
            pq::ExecStatusType::PGRES_COPY_BOTH => AnswerKind::CopyBoth,
            pq::ExecStatusType::PGRES_COPY_IN => AnswerKind::CopyOne(true),
            pq::ExecStatusType::PGRES_COPY_OUT => AnswerKind::CopyOne(false),
            pq::ExecStatusType::PGRES_FATAL_ERROR | pq::ExecStatusType::PGRES_BAD_RESPONSE => {
                AnswerKind::Error
            }
            pq::ExecStatusType::PGRES_PIPELINE_SYNC => AnswerKind::Sync,
            pq::ExecStatusType::PGRES_PIPELINE_ABORTED => AnswerKind::Skipped,
            _ => AnswerKind::Other,
        }
    }

    /// True if a copy that begins is in the binary format.
    pub fn is_binary(&self) -> bool {
        // SAFETY: a live result.
        unsafe { pq::PQbinaryTuples(self.0.as_ptr()) == 1 }
    }

    /// How many rows a statement copied, inserted, updated, deleted or returned.
    pub fn affected(&self) -> u64 {
        // SAFETY: a live result, which libpq only reads; what is returned is copied.
        let number = unsafe { text(pq::PQcmdTuples(self.0.as_ptr())) };
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    pub fn columns(&self) -> Vec<String> {
        let result = self.0.as_ptr();
        // SAFETY: a live result; libpq checks the number, and what is returned is copied.
        unsafe {
            (0..pq::PQnfields(result))
                .map(|column| text(pq::PQfname(result, column)).unwrap_or_default())
                .collect()
        }
    }

    pub fn rows(&self) -> Vec<Vec<Option<String>>> {
        let result = self.0.as_ptr();
        // SAFETY: a live result.
        let (rows, columns) = unsafe { (pq::PQntuples(result), pq::PQnfields(result)) };
        (0..rows)
            .map(|row| (0..columns).map(|column| self.value(row, column)).collect())
            .collect()
    }

    /// The value at `row` and `column`, which must be within the result.
    fn value(&self, row: c_int, column: c_int) -> Option<String> {
        let result = self.0.as_ptr();
        // SAFETY: a live result; libpq checks both numbers, and the value has as many bytes
        // as it says for as long as the result lives.
        unsafe {
            if pq::PQgetisnull(result, row, column) != 0 {
                return None;
            }
            let start = pq::PQgetvalue(result, row, column).cast::<u8>();
            let length = usize::try_from(pq::PQgetlength(result, row, column)).ok()?;
            let bytes = match start.is_null() {
                true => &[][..],
                false => std::slice::from_raw_parts(start, length),
            };
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    }

    /// The error that this answer reports. If the connection broke, there is a message and none of
    /// the other fields.
    pub fn report(&self) -> Report {
        let raw = |code: u8| {
            // SAFETY: a live result; what is returned is copied.
            unsafe { text(pq::PQresultErrorField(self.0.as_ptr(), c_int::from(code))) }
        };
        let field = |code: u8| raw(code).map(|words| one_line(&words));
        let message = field(pq::PG_DIAG_MESSAGE_PRIMARY).unwrap_or_else(|| {
            // SAFETY: a live result; what is returned is copied.
            let words = unsafe { text(pq::PQresultErrorMessage(self.0.as_ptr())) };
            one_line(&words.unwrap_or_default())
        });
        Report {
            sqlstate: field(pq::PG_DIAG_SQLSTATE).unwrap_or_default(),
            message,
            detail: field(pq::PG_DIAG_MESSAGE_DETAIL),
            table: field(pq::PG_DIAG_SCHEMA_NAME).zip(field(pq::PG_DIAG_TABLE_NAME)),
            hint: field(pq::PG_DIAG_MESSAGE_HINT),
            context: raw(pq::PG_DIAG_CONTEXT).map(|context| first_lines(&context)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_name_or_by_display() {
        for (name, shown, secret) in [
            ("password", Some(""), true),
            ("scram_client_key", Some("D"), true),
            ("scram_server_key", None, true),
            ("oauth_client_secret", Some(""), true),
            ("sslpassword", Some(""), true),
            ("tomorrows_key", Some("*"), true),
            ("host", Some(""), false),
            ("passfile", Some(""), false),
        ] {
            assert_eq!(is_secret(name, shown), secret, "{name}");
        }
    }
}
