// Measures Go's text/template with the template from standard input: `go run template.go < FILE`.
//
// In: a template that uses the functions below. Out: nanoseconds for parsing and rendering it, and for rendering it again;
// then the output of a render, which herdlet's must equal.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"text/template"
)

var functions = template.FuncMap{
	"env": func(name string) string {
		if name == "NOMAD_JOB_NAME" {
			return "web"
		}
		return "10.0.0.1:8080"
	},
	"nomadVar": func(path string) map[string]string {
		return map[string]string{"password": "correct horse battery staple"}
	},
	"toJSON": func(value any) (string, error) {
		text, err := json.Marshal(value)
		return string(text), err
	},
	"parseInt": func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) },
	"multiply": func(by int, number int64) int64 { return number * int64(by) },
	"add":      func(by int, number int64) int64 { return number + int64(by) },
	"split":    func(by, text string) []string { return strings.Split(text, by) },
	"toUpper":  strings.ToUpper,
}

func parse(text string) *template.Template {
	return template.Must(template.New("").Funcs(functions).Parse(text))
}

func render(parsed *template.Template) string {
	var out strings.Builder
	if err := parsed.Execute(&out, nil); err != nil {
		panic(err)
	}
	return out.String()
}

func main() {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	text := string(input)
	both := testing.Benchmark(func(b *testing.B) {
		for i := 0; i < b.N; i++ {
			render(parse(text))
		}
	})
	parsed := parse(text)
	again := testing.Benchmark(func(b *testing.B) {
		for i := 0; i < b.N; i++ {
			render(parsed)
		}
	})
	fmt.Println(both.NsPerOp(), again.NsPerOp())
	fmt.Print(render(parsed))
}
