"""Recall: small applications in the shapes of the five articles' listings, and the rules that report each."""

from __future__ import annotations

from pathlib import Path

from retrysafe.scan.scanner import scan
from tests.tables import each_row

LISTINGS = """
### 002: a decorator with a lock of 30 seconds, keys deleted after any error, and a path that finds no key: RS502 RS603
import functools, json, redis, requests
r = redis.Redis()

def idempotent(path='key'):
    def guard(work):
        def run(message):
            key = message.get(path)
            if not key:
                return work(message)
            if not r.set(f'lock:{key}', 1, ex=30, nx=True):
                raise RuntimeError
            try:
                if r.hget(key, 'answer'):
                    return json.loads(r.hget(key, 'answer'))
                result = work(message)
                pipe = r.pipeline()
                pipe.hset(key, 'answer', json.dumps(result))
                pipe.delete(f'lock:{key}')
                pipe.execute()
                return result
            except Exception:
                r.delete(f'lock:{key}', key)
                raise
        return run
    return guard

@idempotent('headers.idempotency_key')
def pay(message): ...

### 004: a charge that a store of answers is asked for: RS602
import functools, json, redis, requests
r = redis.Redis()

class Answers:
    def get(self, key):
        return r.get(key)

    def set(self, key, answer):
        r.setex(key, 86400, answer)

answers = Answers()

def charge(request):
    key = request.headers['Idempotency-Key']
    found = answers.get(key)
    if found:
        return found
    answer = requests.post('https://bank.example').text
    answers.set(key, answer)
    return answer

### 004: a webhook that looks, works and notes: RS602
import functools, json, redis, requests
r = redis.Redis()

async def hook(event):
    if await r.exists(event['id']):
        return
    requests.post('https://crm.example', json=event)
    await r.set(event['id'], 1)

### 004: a command bus with a map: RS604
import requests

class Bus:
    def __init__(self):
        self.done = {}

    def send(self, command):
        if command.id in self.done:
            return self.done[command.id]
        self.done[command.id] = requests.post('https://bank.example')

### 004: message ids in memory, in a loop over a topic: RS401 RS604
import requests
from kafka import KafkaConsumer

def main():
    seen: set[str] = set()
    for message in KafkaConsumer('orders'):
        if message.key in seen:
            continue
        requests.post('https://bank.example')
        seen.add(message.key)

### 003: an order and its event, in two writes: RS203
from kafka import KafkaProducer
from sqlalchemy.orm import Session

producer = KafkaProducer()

class Order: ...

def place(session: Session):
    session.add(Order())
    session.commit()
    producer.send('orders', b'')

### 003: an action filter that looks first and inserts later: RS101
from fastapi import FastAPI
import requests

app = FastAPI()

@app.post('/pay')
def pay(db):
    if db.execute('SELECT 1 FROM keys').fetchone():
        return
    requests.post('https://bank.example')
    db.execute('INSERT INTO keys VALUES (1)')

### 003: stock without a ledger: RS301
def reserve(db):
    db.execute('UPDATE stock SET quantity = quantity - 1 WHERE sku = 7')

### 003: a mark with an expiry, which the work outlives: RS601
import functools, json, redis, requests
r = redis.Redis()

def begin(key):
    if r.set(key, 'InProgress', nx=True, ex=60):
        requests.post('https://bank.example')
        r.set(key, 'Completed', ex=86400)

### 000: an SQS queue, deleted from after the work: RS401
import boto3, requests
sqs = boto3.client('sqs')

while True:
    for message in sqs.receive_message(QueueUrl='q').get('Messages', []):
        requests.post('https://bank.example')
        sqs.delete_message(QueueUrl='q')

### 000: one batch of an SQS queue: RS401
import boto3, requests
sqs = boto3.client('sqs')

def poll():
    got = sqs.receive_message(QueueUrl='q')
    for message in got['Messages']:
        requests.post('https://bank.example')
        sqs.delete_message(QueueUrl='q')

### 000: a Lambda function on a queue: RS401
import boto3
ses = boto3.client('ses')

def handler(event, _context):
    for record in event['Records']:
        ses.send_email(Source='shop')

### 000: a command handler that commits by itself, and mails: RS203
import smtplib, sqlite3

def handle(command):
    with sqlite3.connect('x') as db:
        db.execute('UPDATE t SET a = 1')
    with smtplib.SMTP() as out:
        out.send_message(command)

### 002: completion without a condition on DynamoDB: nothing
import boto3
keys = boto3.resource('dynamodb').Table('keys')

def complete(key):
    keys.put_item(Item={'id': key, 'state': 'done'})

### 004: marked in one statement, done in the next: nothing
def ship(db, order):
    db.execute('INSERT INTO done VALUES (1) ON CONFLICT DO NOTHING')
    db.execute('UPDATE orders SET state = 2')
"""
APPLICATIONS = [one.split("\n", 1) for one in LISTINGS.split("### ")[1:]]


@each_row(("title", "text"), APPLICATIONS, ids=lambda title: str(title)[:60])
def test_hazards_of_the_articles(title: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(text, encoding="utf-8")
    expected = title.rpartition(": ")[2].replace("nothing", "").split()
    assert sorted({one.rule.id for one in scan([str(tmp_path)]).findings}) == expected
