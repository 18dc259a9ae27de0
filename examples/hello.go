// hello.go - the library from Go: cgo reads the headers, many goroutines share one client.
//
//	CGO_CFLAGS="$(pkg-config --cflags tinkc-engine)" CGO_LDFLAGS="$(pkg-config --libs tinkc-engine tinkc)" go run hello.go
package main

/*
#include <stdlib.h>
#include <tinkc/engine.h>
#include <tinkc/tinkc.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// failed makes a Go error of the library's, nil if there is none.
func failed(e *C.tinkc_error) error {
	if e.code == 0 {
		return nil
	}
	return errors.New(C.GoString(&e.message[0]))
}

type model struct {
	sampler *C.tinkc_sampler
	tok     *C.tinkc_tokenizer
}

// ask waits for an answer. Any number of goroutines may ask at once: the engine works on all of them together.
func (m model) ask(question string) (string, error) {
	var e C.tinkc_error
	var prompt C.tinkc_tokens
	var text C.tinkc_text
	defer C.tinkc_tokens_free(&prompt)
	defer C.tinkc_text_free(&text)
	messages := C.CString(fmt.Sprintf(`[{"role":"user","content":%q}]`, question))
	defer C.free(unsafe.Pointer(messages))

	var chat C.tinkc_chat_options
	chat.generation_prompt = true
	C.tinkc_chat_encode(m.tok, messages, &chat, &prompt, &e)
	var how C.tinkc_sampling
	C.tinkc_sampling_init(&how) // macros are not seen from Go
	how.temperature = 0
	future := C.tinkc_sample(m.sampler, prompt.data, prompt.len, 1, &how, &e)
	defer C.tinkc_future_free(future)
	answer := C.tinkc_samples_at(C.tinkc_future_samples(future, 60000, &e), 0)
	if err := failed(&e); err != nil {
		return "", err
	}
	// Without the token that ended it.
	said := C.GoString(C.tinkc_decode(m.tok, answer.tokens.data, answer.tokens.len-1, &text, &e))
	return said, failed(&e)
}

func run(folder string) error {
	var e C.tinkc_error
	name, path := C.CString("nano"), C.CString(folder)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(path))
	engine := C.tinkc_engine_new(nil, &e)
	defer C.tinkc_engine_free(engine)
	C.tinkc_engine_add_model(engine, name, path, &e)
	var options C.tinkc_client_options
	options.transport = C.tinkc_engine_transport(engine)
	client := C.tinkc_client_new(&options, &e)
	defer C.tinkc_client_free(client)
	var which C.tinkc_sampler_options
	which.base_model = name
	sampler := C.tinkc_sampler_new(client, &which, &e)
	defer C.tinkc_sampler_free(sampler)
	tok := C.tinkc_tokenizer_open(path, nil, &e)
	defer C.tinkc_tokenizer_free(tok)
	if err := failed(&e); err != nil {
		return err
	}

	m, right := model{sampler, tok}, make([]bool, 8)
	var all sync.WaitGroup
	for i := range right {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			answer, err := m.ask(fmt.Sprintf("What is %d + 11?", 20+i))
			right[i] = err == nil && strings.Contains(answer, fmt.Sprint(31+i))
		}(i)
	}
	all.Wait()
	n := 0
	for _, ok := range right {
		if ok {
			n++
		}
	}
	fmt.Printf("%d of 8 sums are right\n", n)
	return nil
}

func main() {
	folder := "models/nano"
	if len(os.Args) > 1 {
		folder = os.Args[1]
	}
	if err := run(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
