//! hello.rs - the library from Rust: declarations by hand, a guard that frees, errors as Result.
//!
//!     rustc -L LIBRARY_FOLDER hello.rs && LD_LIBRARY_PATH=LIBRARY_FOLDER ./hello [MODEL_FOLDER]
//!
//! Sizes of structs that programs fill in never change (TINKC_PIN_SIZE), so hand-written declarations stay right.
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_void};
use std::ptr::null;

#[repr(C)]
struct Error { code: i32, http_status: i32, category: i32, flags: u32, request_id: [c_char; 64], message: [c_char; 400], rest: [u64; 4] }
#[repr(C)]
struct ClientOptions { who_and_where: [*const c_void; 13], transport: *const c_void, rest: [u64; 21] }
#[repr(C)]
struct SamplerOptions { base_model: *const c_char, model_path: *const c_char, retry: *const c_void, reserved: [u64; 5] }
#[repr(C)]
struct ChatOptions { texts: [*const c_void; 7], numbers: [i64; 3], train_on: i32, generation_prompt: bool, bools: [bool; 3], reserved: [u64; 6] }
#[repr(C)]
struct Sampling {
    stop: *const c_void, stop_tokens: *const i32, n_stop_tokens: usize, seed: u64, max_tokens: i32, temperature: f32, top_p: f32,
    top_k: i32, topk_prompt_logprobs: i32, bools: [bool; 4], more: [i32; 2], reserved: [u64; 3],
}
#[repr(C)]
struct Array<T> { data: *mut T, len: usize, cap: usize, allocator: *const c_void }
#[repr(C)]
struct Sequence { tokens: *const i32, n_tokens: usize, logprobs: *const f32, n_logprobs: usize, stop_reason: i32 }

#[link(name = "tinkc")]
extern "C" {
    fn tinkc_client_new(options: *const ClientOptions, err: *mut Error) -> *mut c_void;
    fn tinkc_client_free(client: *mut c_void);
    fn tinkc_sampler_new(client: *mut c_void, options: *const SamplerOptions, err: *mut Error) -> *mut c_void;
    fn tinkc_sampler_free(sampler: *mut c_void);
    fn tinkc_tokenizer_open(folder: *const c_char, options: *const c_void, err: *mut Error) -> *mut c_void;
    fn tinkc_tokenizer_free(tokenizer: *mut c_void);
    fn tinkc_chat_encode(tok: *const c_void, messages: *const c_char, how: *const ChatOptions, out: *mut Array<i32>, err: *mut Error) -> bool;
    fn tinkc_decode(tok: *const c_void, ids: *const i32, len: usize, out: *mut Array<c_char>, err: *mut Error) -> *const c_char;
    fn tinkc_sampling_init(how: *mut Sampling);
    fn tinkc_sample(sampler: *mut c_void, prompt: *const i32, len: usize, n: usize, how: *const Sampling, err: *mut Error) -> *mut c_void;
    fn tinkc_future_samples(future: *mut c_void, timeout_ms: i64, err: *mut Error) -> *const c_void;
    fn tinkc_samples_at(samples: *const c_void, i: usize) -> *const Sequence;
    fn tinkc_future_free(future: *mut c_void);
    fn tinkc_tokens_free(tokens: *mut Array<i32>);
    fn tinkc_text_free(text: *mut Array<c_char>);
}
#[link(name = "tinkc-engine")]
extern "C" {
    fn tinkc_engine_new(options: *const c_void, err: *mut Error) -> *mut c_void;
    fn tinkc_engine_add_model(engine: *mut c_void, name: *const c_char, folder: *const c_char, err: *mut Error) -> bool;
    fn tinkc_engine_transport(engine: *mut c_void) -> *const c_void;
    fn tinkc_engine_free(engine: *mut c_void);
}

/// A handle that is freed at the end of its scope.
struct Handle(*mut c_void, unsafe extern "C" fn(*mut c_void));
impl Drop for Handle {
    fn drop(&mut self) {
        unsafe { (self.1)(self.0) }
    }
}

/// Calls with a fresh error and makes a Result of it.
fn call<T>(f: impl FnOnce(*mut Error) -> T) -> Result<T, String> {
    let mut err: Error = unsafe { std::mem::zeroed() };
    let result = f(&mut err);
    if err.code == 0 {
        return Ok(result);
    }
    Err(unsafe { CStr::from_ptr(err.message.as_ptr()) }.to_string_lossy().into_owned())
}

fn ask(folder: &str, question: &str) -> Result<String, String> {
    let (name, folder) = (CString::new("nano").unwrap(), CString::new(folder).unwrap());
    let messages = CString::new(format!("[{{\"role\":\"user\",\"content\":\"{question}\"}}]")).unwrap();
    unsafe {
        let engine = Handle(call(|e| tinkc_engine_new(null(), e))?, tinkc_engine_free);
        call(|e| tinkc_engine_add_model(engine.0, name.as_ptr(), folder.as_ptr(), e))?;
        let options = ClientOptions { transport: tinkc_engine_transport(engine.0), ..std::mem::zeroed() };
        let client = Handle(call(|e| tinkc_client_new(&options, e))?, tinkc_client_free);
        let options = SamplerOptions { base_model: name.as_ptr(), ..std::mem::zeroed() };
        let sampler = Handle(call(|e| tinkc_sampler_new(client.0, &options, e))?, tinkc_sampler_free);
        let tok = Handle(call(|e| tinkc_tokenizer_open(folder.as_ptr(), null(), e))?, tinkc_tokenizer_free);

        let (mut prompt, mut text): (Array<i32>, Array<c_char>) = (std::mem::zeroed(), std::mem::zeroed());
        let chat = ChatOptions { generation_prompt: true, ..std::mem::zeroed() };
        call(|e| tinkc_chat_encode(tok.0, messages.as_ptr(), &chat, &mut prompt, e))?;
        let mut how: Sampling = std::mem::zeroed();
        tinkc_sampling_init(&mut how);
        how.temperature = 0.0;
        let future = Handle(call(|e| tinkc_sample(sampler.0, prompt.data, prompt.len, 1, &how, e))?, tinkc_future_free);
        let samples = call(|e| tinkc_future_samples(future.0, 60000, e))?;
        let answer = &*tinkc_samples_at(samples, 0);
        call(|e| tinkc_decode(tok.0, answer.tokens, answer.n_tokens - 1, &mut text, e))?; // without the token that ended it
        let said = CStr::from_ptr(text.data).to_string_lossy().into_owned();
        tinkc_text_free(&mut text);
        tinkc_tokens_free(&mut prompt);
        Ok(said)
    }
}

fn main() {
    let folder = std::env::args().nth(1).unwrap_or("models/nano".into());
    match ask(&folder, "What is 7 + 5?") {
        Ok(answer) => println!("{answer}"),
        Err(problem) => {
            eprintln!("{problem}");
            std::process::exit(1);
        }
    }
}
