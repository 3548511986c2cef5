// The conformance fixture behind the idempotency middleware of Fiber: go run . PORT
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/fiber/v3/middleware/recover"
)

type script struct {
	ID      string      `json:"id"`
	Status  int         `json:"status"`
	Headers [][2]string `json:"headers"`
	Text    *string     `json:"text"`
	Base64  *string     `json:"base64"`
	Repeat  int         `json:"repeat"`
	Gate    string      `json:"gate"`
	Raise   string      `json:"raise"`
	Stream  bool        `json:"stream"`
}

var (
	mutex      sync.Mutex
	executions = map[string]int{}
	gates      = map[string]chan struct{}{}
)

func gate(id string) chan struct{} {
	mutex.Lock()
	defer mutex.Unlock()
	if gates[id] == nil {
		gates[id] = make(chan struct{})
	}
	return gates[id]
}

func open(id string) {
	opened := gate(id)
	mutex.Lock()
	defer mutex.Unlock()
	select {
	case <-opened:
	default:
		close(opened)
	}
}

func wait(id string) {
	select {
	case <-gate(id):
	case <-time.After(30 * time.Second):
	}
}

func act(c fiber.Ctx) error {
	told := script{Status: 200, Repeat: 1}
	if header := c.Get("Fixture-Script"); header != "" {
		if err := json.Unmarshal([]byte(header), &told); err != nil {
			return err
		}
	}
	told.ID = strings.Clone(told.ID)
	mutex.Lock()
	executions[told.ID]++
	mutex.Unlock()
	if told.Gate == "before" {
		wait(told.ID)
	}
	if told.Raise == "before" {
		return errors.New("told to raise")
	}
	piece := bytes.Clone(c.BodyRaw())
	if told.Base64 != nil {
		piece, _ = base64.StdEncoding.DecodeString(*told.Base64)
	} else if told.Text != nil {
		piece = []byte(*told.Text)
	} else {
		c.Set("Content-Type", c.Get("Content-Type"))
	}
	for _, line := range told.Headers {
		c.RequestCtx().Response.Header.Add(line[0], line[1])
	}
	c.Status(told.Status)
	if !told.Stream {
		return c.Send(bytes.Repeat(piece, told.Repeat))
	}
	return c.SendStreamWriter(func(out *bufio.Writer) {
		for number := 0; number < told.Repeat; number++ {
			if number == 1 && told.Gate == "between" {
				wait(told.ID)
			}
			if _, err := out.Write(piece); err != nil || out.Flush() != nil {
				return
			}
		}
	})
}

func main() {
	app := fiber.New(fiber.Config{BodyLimit: 10 << 20, StrictRouting: true})
	capabilities := fiber.Map{
		"fixture":  1,
		"name":     "fiber idempotency",
		"version":  fiber.Version,
		"server":   "fiber " + fiber.Version,
		"features": []string{"gate", "stream", "hop"},
		"choices":  fiber.Map{"key_syntax": "bare", "concurrency": "wait"},
		"limits":   fiber.Map{"request": 10 << 20},
		"unsupported": fiber.Map{
			"store":      "its store is in memory, and can't be taken away",
			"elapse":     "its clock can't be moved",
			"principals": "it has no notion of a principal",
			"background": "its handlers have no work after the response",
		},
	}
	app.Get("/fixture", func(c fiber.Ctx) error { return c.JSON(capabilities) })
	app.Get("/fixture/calls", func(c fiber.Ctx) error {
		mutex.Lock()
		defer mutex.Unlock()
		return c.JSON(fiber.Map{"executions": executions[c.Query("id")]})
	})
	app.Get("/fixture/release", func(c fiber.Ctx) error { open(strings.Clone(c.Query("id"))); return c.JSON(fiber.Map{}) })
	app.Get("/fixture/reset", func(c fiber.Ctx) error {
		mutex.Lock()
		executions = map[string]int{}
		mutex.Unlock()
		return c.JSON(fiber.Map{})
	})
	app.Use(recover.New())
	app.Use(idempotency.New(idempotency.Config{
		KeyHeader: "Idempotency-Key",
		KeyHeaderValidate: func(key string) error {
			if len(key) > 255 {
				return fiber.NewError(fiber.StatusBadRequest, "the key is too long")
			}
			return nil
		},
	}))
	app.All("/act", act)
	app.All("/act/*", act)
	if err := app.Listen("127.0.0.1:"+os.Args[1], fiber.ListenConfig{DisableStartupMessage: true}); err != nil {
		panic(err)
	}
}
